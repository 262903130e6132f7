"""Every optimizer name in real processes: saved, resumed, over two ranks, stepped by hand, and beside transformers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hexloop import ConfigurationError
from hexloop.adapters.trainable.torch.optimizers import OPTIMIZERS, choose_optimizer
from tests.end_to_end.optimizers.cases import CASES, GIVEN
from tests.end_to_end.optimizers.program import SAVED_AT, STEPS
from tests.engines.processes import QUIET, free_port
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[3]
SECONDS = 600
ALWAYS_THERE = ("torch", "hexloop", "transformers")
"""Packages whose optimizers are tried together, in every test run."""

Results = Mapping[str, Any]


def packages() -> dict[str, list[str]]:
    """Return the names that are trained, by the package whose optimizers are tried together."""
    found: dict[str, list[str]] = {}
    for name, case in CASES.items():
        package = OPTIMIZERS[name].package
        if not case.refused:
            found.setdefault(ALWAYS_THERE[0] if package in ALWAYS_THERE else package, []).append(name)
    return found


def run(folder: Path, names: Sequence[str], hows: Sequence[str], world: int = 1) -> list[Results]:
    """Run each name in each way, in so many processes; return the results by "<name> <how>", by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [{"id": f"{name} {how}", "name": name, "how": how} for name in names for how in hows]
    meeting = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command = [warm_python(), "-m", "tests.end_to_end.optimizers.program", str(folder), json.dumps(runs)]
    started = []
    for rank in range(world):
        own = {"RANK": rank, "LOCAL_RANK": rank, **meeting} if world > 1 else {}
        variables = os.environ | QUIET | {name: str(value) for name, value in own.items()}
        with (folder / f"rank-{rank}.log").open("w") as log:
            started.append(subprocess.Popen(command, env=variables, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    logs = [(folder / f"rank-{rank}.log").read_text()[-2000:] for rank in range(world)]
    assert codes == [0] * world, "\n".join(logs)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


def errors(results: Results) -> Iterator[str]:
    """Yield the errors of runs, but for those that transformers cannot make, and those that are refused."""
    for key, result in results.items():
        name, _, how = key.partition(" ")
        known = CASES[name].alone if how == "transformers" else CASES[name].reproduced if how == "reproduce" else ""
        if "error" in result and not (known and (how == "transformers" or known in result["error"])):
            yield f"{key}: {result['error']}\n{result['trace']}"


def furthest(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest relative difference of two series of the same length; infinite if the lengths differ."""
    if len(one) != len(other):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


def differences(name: str, whole: Results, resumed: Results, ranks: list[Results]) -> Iterator[str]:
    """Yield what is not as the row of a name says."""
    case, own = CASES[name], whole[f"{name} hexloop"]
    if len(own["losses"]) != STEPS or not min(own["losses"][-6:]) < min(own["losses"][:6]):
        yield f"it did not learn in {STEPS} steps: {own['losses']}"
    for key in ("losses", "rates", "weights", "state"):
        if resumed[f"{name} resume"][key] != own[key] or not (own[key] or (key == "state" and case.stateless)):
            yield f"resumed from step {SAVED_AT}, {key} are not bitwise equal"
    if case.by_hand is not None:
        apart = furthest(own["losses"], whole[f"{name} by hand"]["losses"])
        if apart > case.close:
            yield f"losses are {apart:.1e} from those of its class stepped by hand"
    theirs, reproduced = whole[f"{name} transformers"], whole[f"{name} reproduce"]
    if not case.alone:
        apart = furthest(own["losses"], theirs["losses"])
        if (apart > 1e-6) != bool(case.differs):
            yield f"losses are {apart:.1e} from those of transformers, and the row says {case.differs or 'equal'!r}"
        if not case.reproduced and furthest(reproduced["losses"], theirs["losses"]) > 1e-6:
            yield "reproduce='transformers' does not lead to the losses of transformers"
    shared = [each[f"{name} hexloop"] for each in ranks]
    if any(each["weights"] != shared[0]["weights"] for each in shared):
        yield "two ranks have other weights"
    apart = furthest(shared[0]["losses"], own["losses"])
    if apart > case.close_over_ranks:
        yield f"losses of two ranks are {apart:.1e} from those of one process"
    again = ranks[0][f"{name} resume"]
    if again["weights"] != shared[0]["weights"]:
        yield f"two ranks resumed from step {SAVED_AT} have other weights"


@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.matrix
@pytest.mark.parametrize("package", packages())
def test_an_optimizer_is_as_its_row_says(package: str, tmp_path: Path) -> None:
    """Each resumes bitwise in a fresh process, trains over two ranks, and equals its class stepped by hand.

    Its losses are those of transformers to 1e-6, or differ for the reason that the row gives.
    """
    names = packages()[package]
    ways = ("hexloop", "by hand", "transformers", "reproduce")
    (whole,) = run(tmp_path / "one", names, ways)
    (resumed,) = run(tmp_path / "one", names, ("resume",))
    together = run(tmp_path / "two", names, ("hexloop", "resume"), world=2)
    failed = [each for results in (whole, resumed, *together) for each in errors(results)]
    assert not failed, "\n".join(failed)
    found = {name: list(differences(name, whole, resumed, together)) for name in names}
    assert not any(found.values()), found


def test_every_name_has_a_row() -> None:
    assert CASES.keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused])
def test_what_cannot_run_here_is_refused(name: str) -> None:
    """The error says why, and what to install or to choose."""
    betas = (GIVEN["adam_beta1"], GIVEN["adam_beta2"])
    with pytest.raises(ConfigurationError) as caught:
        choose_optimizer(name, 1e-3, betas, 1e-8, CASES[name].arguments.get("optim_args"), "cpu")
    (problem,) = caught.value.problems
    assert CASES[name].refused in problem
    assert "; run `pip install " in problem or "; choose" in problem
