"""Files that are swapped during a resume: what is loaded is what was verified, or the checkpoint is not used."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hexloop
from hexloop.adapters.storage.local import LocalStorage
from hexloop.ports.storage import Entry, Stored
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

LAST = 3
SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}


class Swapping(LocalStorage):
    """Swaps files before the operation number `at`, counted from 0: before each opening, listing, and chunk."""

    def __init__(self, root: Path, at: int, swap: Callable[[], None]) -> None:
        super().__init__(root)
        self._at, self._swap, self.operations = at, swap, 0

    def _count(self) -> None:
        if self.operations == self._at:
            self._swap()
        self.operations += 1

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Read, in small chunks."""
        self._count()
        for chunk in super().read(path, start):
            for begin in range(0, len(chunk), 2048):
                self._count()
                yield chunk[begin : begin + 2048]

    def list(self, folder: str) -> tuple[Entry, ...]:
        """List."""
        self._count()
        return super().list(folder)

    def digest(self, path: str) -> Stored:
        """Return the digest."""
        self._count()
        return super().digest(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, torch.Tensor]]:
    """Two runs with the same settings but their data, and the weights of the first at its end."""
    folder = tmp_path_factory.mktemp("runs")
    ours = small_trainer(folder / "ours", max_steps=LAST, **SAVES)
    ours.train()
    shutil.rmtree(folder / "ours" / f"checkpoint-{LAST}")
    small_trainer(folder / "other", max_steps=LAST, data_seed=7, seed=9, **SAVES).train()
    return folder / "ours", folder / "other", weights(ours)


def swapped(output: Path, other: Path, files: tuple[str, ...]) -> Callable[[], None]:
    def swap() -> None:
        for file in files:
            target = next(output.glob("*checkpoint-2")) / file
            shutil.copyfile(other / "checkpoint-2" / file, target.with_suffix(".new"))
            target.with_suffix(".new").replace(target)

    return swap


FILES = ("model.safetensors", "optimizer.safetensors", "run_state.json", "manifest.json")


def operations_of_a_resume(ours: Path, folder: Path) -> int:
    output = Path(shutil.copytree(ours, folder / "counted"))
    storage = Swapping(output, -1, lambda: None)
    small_trainer(output, parts={"storage": storage}, max_steps=LAST).train(resume_from_checkpoint=True)
    return storage.operations


def resumed(runs: Any, folder: Path, at: int, files: tuple[str, ...], named: bool) -> str:
    """Resume while files are swapped; return what happened: "loaded", "fell back" or "refused"."""
    ours, other, expected = runs
    output = Path(shutil.copytree(ours, folder))
    storage = Swapping(output, at, swapped(output, other, files))
    trainer = small_trainer(output, parts={"storage": storage}, max_steps=LAST)
    before = weights(trainer)
    error: hexloop.CheckpointError | None = None
    try:
        trainer.train(resume_from_checkpoint=str(output / "checkpoint-2") if named else True)
    except hexloop.CheckpointError as raised:
        error = raised
    if error is not None:
        assert named or files == ("manifest.json",), error  # with that, it is a checkpoint of another run
        assert "checkpoint-2" in str(error)
        assert same_weights(weights(trainer), before), "swapped weights are left in the model"
        return "refused"
    assert same_weights(weights(trainer), expected), f"operation {at}: what was loaded is not what was verified"
    return "fell back" if list(output.glob(".hexloop/damaged-*")) else "loaded"


@pytest.mark.one_in(10)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("files", [(file,) for file in FILES] + [FILES[:3]], ids=lambda files: files[-1])
def test_swapped_files_are_never_loaded(runs: Any, tmp_path: Path, files: tuple[str, ...], named: bool) -> None:
    """At some moments of a resume; a run that resumes exactly has the same weights from its earlier checkpoint."""
    count = operations_of_a_resume(runs[0], tmp_path)
    moments = range(0, count, max(1, count // 8))
    results = {resumed(runs, tmp_path / f"at-{at}", at, files, named) for at in moments}
    assert results & {"fell back", "refused"}


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("files", [(file,) for file in FILES] + [FILES[:3]], ids=lambda files: files[-1])
def test_swapped_files_are_never_loaded_at_any_moment(
    runs: Any, tmp_path: Path, files: tuple[str, ...], named: bool
) -> None:
    """Before every opening, listing and chunk."""
    for at in range(operations_of_a_resume(runs[0], tmp_path)):
        resumed(runs, tmp_path / f"at-{at}", at, files, named)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_files_of_another_checkpoint_are_loaded_only_together(runs: Any, tmp_path: Path) -> None:
    """With its manifest, the other checkpoint is a good one: the run has its weights as a whole, or its own."""
    ours, other, expected = runs
    second = small_trainer(tmp_path / "second", max_steps=LAST)
    second.train(resume_from_checkpoint=str(other / "checkpoint-2"))
    count = operations_of_a_resume(ours, tmp_path)
    for at in range(0, count, max(1, count // 10)):
        output = Path(shutil.copytree(ours, tmp_path / f"at-{at}"))
        storage = Swapping(output, at, swapped(output, other, FILES))
        trainer = small_trainer(output, parts={"storage": storage}, max_steps=LAST)
        try:
            trainer.train(resume_from_checkpoint=str(output / "checkpoint-2"))
        except hexloop.CheckpointError:
            continue
        assert any(same_weights(weights(trainer), each) for each in (expected, weights(second))), at
