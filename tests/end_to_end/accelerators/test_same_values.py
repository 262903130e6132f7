"""`trainer.accelerator` says and does what transformers' does, at the same moment of the same run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.end_to_end.accelerators.cases import CASES
from tests.end_to_end.accelerators.runs import SLOW, Seen, see

QUICK = ("moments",)
OF_DEEPSPEED = ("zero 1", "zero 2", "zero 3")
FURTHER = tuple(name for name in CASES if name not in (*QUICK, *OF_DEEPSPEED, "fsdp 1"))

DIFFERENT: dict[str, tuple[str, ...]] = {
    "moments without reproduce": ("trained",),
    "moments without reproduce ddp": ("trained",),
    "moments fp16": ("mixed_precision", "state.mixed_precision"),
    "own loader": ("resumed",),
    "own loader ddp": ("resumed",),
    "configured": ("none",),
}
"""What differs, as docs/accelerator.md describes: after a run, a loader is no longer in use, and a resume is exact."""

Both = tuple[Seen, Seen]

pytestmark = pytest.mark.timeout(2 * SLOW)


def both(factory: pytest.TempPathFactory, names: tuple[str, ...]) -> Both:
    folder = factory.mktemp("both")
    return see("hexloop", names, folder), see("transformers", names, folder)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both(tmp_path_factory, QUICK)


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both(tmp_path_factory, FURTHER)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both(tmp_path_factory, OF_DEEPSPEED)


def flat(seen: Any) -> dict[str, Any]:
    """Return what was seen by name; the values of each moment have its name and number first."""
    if isinstance(seen, dict):
        return seen
    return {
        f"{moment} {at}: {name}": value for at, (moment, _, values) in enumerate(seen) for name, value in values.items()
    }


def is_different(case: str, name: str) -> bool:
    moment, _, value = name.partition(": ")
    known = DIFFERENT.get(case, ())
    return name in known or value in known or moment.partition(" ")[0] in known


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values agree; errors agree whatever their types."""
    errors = [isinstance(each, str) and each.startswith("raises ") for each in (one, other)]
    return all(errors) or one == other


def is_close(one: Any, other: Any) -> bool:
    """Return whether two weights agree, apart from the order in which engines sum; errors and None also agree."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return is_same(one, other)
    pairs = [(torch.tensor(one[name]["values"]), torch.tensor(other[name]["values"])) for name in one]
    return one.keys() == other.keys() and all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in pairs)


def assert_same(name: str, ours: Seen, theirs: Seen) -> None:
    for rank in range(CASES[name].ranks):
        mine, reference = flat(ours.of(name, rank)), flat(theirs.of(name, rank))
        assert mine.keys() == reference.keys()
        assert len(mine) > 1
        different = {
            each: (mine[each], reference[each])
            for each in mine
            if not is_same(mine[each], reference[each]) and not is_different(name, each)
        }
        if name.startswith(("zero", "fsdp")) and is_close(mine["state dict"], reference["state dict"]):
            different.pop("state dict", None)
        assert not different


@pytest.mark.matrix
@pytest.mark.parametrize("name", QUICK)
def test_values_are_those_of_transformers(name: str, quick: Both) -> None:
    """At every moment of a run, and in a loop of the user's own in two processes."""
    assert_same(name, *quick)


@pytest.mark.matrix
@pytest.mark.parametrize("name", FURTHER)
def test_further_values_are_those_of_transformers(name: str, further: Both) -> None:
    """In every precision, with tensors of processes, prepared objects, saved states, trackers, and FSDP 2."""
    assert_same(name, *further)


@pytest.mark.matrix
@pytest.mark.parametrize("name", OF_DEEPSPEED)
def test_values_of_deepspeed_are_those_of_transformers(name: str, sharded: Both) -> None:
    """Its plugin, its configuration, and the weights of the model."""
    pytest.importorskip("deepspeed")
    assert_same(name, *sharded)


@pytest.mark.matrix
def test_values_of_the_first_fsdp_are_those_of_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """And the weights are those that FSDP 2 has trained, because transformers cannot gather them on a CPU."""
    ours, theirs = both(tmp_path_factory, ("fsdp 1", "fsdp 2"))
    mine, reference = ours.of("fsdp 1"), theirs.of("fsdp 1")
    gathered = theirs.of("fsdp 2")

    assert not {name: (mine[name], value) for name, value in reference.items() if not is_same(mine[name], value)}
    assert is_close(mine["state dict"], gathered["state dict"])
    for name in ("losses", "keys of model", "gathered", "clipped"):
        assert mine[name] == gathered[name]
