"""A run resumed with the same arguments in fewer or more processes continues unchanged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.launched import ROOT, wait_until
from tests.engines.processes import free_port
from tests.engines.several.training import Trained, Training, ended, fresh, run
from tests.engines.test_ddp import same

SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "epoch"}


def steps_of(trained: Trained, training: Training) -> list[set[int]]:
    """Return the samples of each step, for full steps."""
    share = training.size // len(trained.read)
    starts = range(0, len(trained.read[0]), share)
    return [{index for read in trained.read for index in read[start : start + share]} for start in starts]


def handed_on(training: Training, worlds: tuple[int, ...], folder: Path) -> None:
    """Resume each process count from step 4 of the previous one, and from steps 8 and 12; all must match the first."""
    whole = run(training, fresh(folder / "0"))
    expected = steps_of(whole, training)
    assert len(expected) == 18
    for number, processes in enumerate(worlds, 1):
        before = folder / str(number - 1) / f"checkpoint-{4 * number}"
        resumed = run(training.of(processes, resume=str(before)), fresh(folder / str(number)))
        assert steps_of(resumed, training) == expected[4 * number :]
        same(whole, resumed)


def test_two_processes_then_one_then_two(tmp_path: Path) -> None:
    """Steps contain the same samples and training matches, with unchanged arguments."""
    handed_on(Training(2, rows=48, accumulates=2, arguments=SAVES), (1, 2), tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("first", "accumulates", "worlds"), [(4, 1, (2, 2, 4)), (4, 1, (1, 2)), (1, 4, (2, 4)), (2, 2, (4, 1))]
)
def test_any_number_of_processes_resumes_any_other(
    tmp_path: Path, first: int, accumulates: int, worlds: tuple[int, ...]
) -> None:
    """Also with the same number again, after the accumulation was changed once."""
    handed_on(Training(first, rows=48, accumulates=accumulates, arguments=SAVES), worlds, tmp_path)


@pytest.mark.matrix
def test_sharded_checkpoints_resume_in_one_process(tmp_path: Path) -> None:
    """Under FSDP, too, and back to two."""
    arguments = {**SAVES, "fsdp": "full_shard", "fsdp_config": {"version": 2}}
    sharded = Training(2, rows=48, accumulates=2, engine="FSDPReader", arguments=arguments)
    handed_on(sharded, (4,), tmp_path)


@pytest.mark.matrix
def test_processes_that_do_not_divide_a_step_are_refused(tmp_path: Path) -> None:
    """Every rank refuses, and names the numbers that divide it."""
    training = Training(2, rows=48, batch=4, accumulates=1, arguments=SAVES)
    run(training, fresh(tmp_path / "run"))
    resume = str(tmp_path / "run" / "checkpoint-4")
    for said in ended(training.of(4, resume=resume), fresh(tmp_path / "refused")):
        assert said.startswith("ConfigurationError: The checkpoint's run had optimizer steps of 8 samples, which")
        assert "start 1 or 2 processes, or choose per_device_train_batch_size=1 or 2, or accept" in said
    run(training.of(4, batch=2, resume=resume), fresh(tmp_path / "taken"))


@pytest.mark.matrix
@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_run_continues_after_losing_a_machine(tmp_path: Path, name: str) -> None:
    """Two launches of one process each; one is killed, the other restarts alone, and the result is the same."""
    for folder in ("alone", "both"):
        (tmp_path / folder).mkdir()
    script = [str(ROOT / "tests/engines/several/elastic.py")]
    alone = subprocess.run([sys.executable, *script, str(tmp_path / "alone"), "4"], env=environment(), check=False)
    words = ["--processes", "1", "--nodes", "1:2", "--rendezvous", f"127.0.0.1:{free_port()}", "--restarts", "2"]
    words += [*script, str(tmp_path / "both"), "2"]
    with (tmp_path / "output").open("wb") as output:
        launches = [
            subprocess.Popen(
                [sys.executable, "-m", "hexloop", "launch", "--node-rank", str(node), *words],
                env=environment(), stdout=output, stderr=subprocess.STDOUT,
            )
            for node in (0, 1)
        ]  # fmt: skip
        try:
            wait_until((tmp_path / "both" / "run" / "checkpoint-6").exists, "the two do not come to step 6")
            launches[1].send_signal(signal.Signals[name])
            # torch waits 45 s for other machines; the rest depends on the load of this one.
            assert launches[0].wait(330) == 0, (tmp_path / "output").read_text()[-3000:]
        finally:
            for launch in launches:
                launch.kill()
                launch.wait()
    assert alone.returncode == 0
    said = re.findall(r"in \d by \d of \d+", (tmp_path / "output").read_text())
    assert said == ["in 2 by 2 of 8", "in 1 by 4 of 8"]
    losses = [json.loads((tmp_path / folder / "end.json").read_text()) for folder in ("alone", "both")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def environment() -> dict[str, str]:
    """Return the environment of the tests, in which the repository can be imported."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_DISABLE_XET": "1"}
