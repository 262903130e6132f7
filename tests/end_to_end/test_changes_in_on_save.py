"""A callback that changes files of a complete checkpoint in `on_save` is reported at that save."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from hexloop import TrainerCallback
from hexloop.domain.errors import CheckpointError
from tests.end_to_end.small.trainers import small_trainer


def replace_weights(folder: Path) -> None:
    """Replace the weights by some under names of the callback's own, as LLaMA-Factory does for value heads."""
    path = folder / "model.safetensors"
    save_file({f"mine.{name}": each.clone() for name, each in load_file(path).items()}, path)


def rewrite_in_place(folder: Path) -> None:
    """Change bytes without changing the size."""
    path = folder / "trainer_state.json"
    with path.open("r+b") as file:
        file.write(b"[")


CHANGES: dict[str, Callable[[Path], object]] = {
    "replaced": replace_weights,
    "in place": rewrite_in_place,
    "removed": lambda folder: os.remove(folder / "training_args.json"),
}


class Acts(TrainerCallback):
    """Does something to the folder of each checkpoint."""

    def __init__(self, act: Callable[[Path], object]) -> None:
        self.act = act

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.act(Path(args.output_dir, f"checkpoint-{state.global_step}"))


def trainer_with(folder: Path, act: Callable[[Path], object], **given: Any) -> Any:
    return small_trainer(folder, parts={"callbacks": [Acts(act)]}, save_strategy="steps", save_steps=2, **given)


@pytest.mark.parametrize("save_async", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_checkpoint_is_reported_at_its_save(
    tmp_path: Path, change: Callable[[Path], object], save_async: bool
) -> None:
    """Once, with the files and the way out; what the warning says of a later resume is so."""
    with pytest.warns(UserWarning, match="changed files of checkpoint-2 in on_save") as caught:
        trainer_with(tmp_path, change, save_async=save_async).train()
    found = [str(each.message) for each in caught if "in on_save" in str(each.message)]
    assert len(found) == 1
    assert "save_model" in found[0]
    with pytest.raises(CheckpointError):
        small_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: (folder / "more.txt").write_text("added"),
        lambda folder: (folder.parent / "model.safetensors").write_bytes(b"elsewhere"),
        lambda folder: list(folder.iterdir()),
    ],
    ids=["adds", "writes elsewhere", "reads"],
)
def test_other_callbacks_are_not(tmp_path: Path, act: Callable[[Path], object]) -> None:
    """Added files and files elsewhere leave a checkpoint good: there is no warning, and a run resumes from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_with(tmp_path, act).train()
    small_trainer(tmp_path, max_steps=6).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
