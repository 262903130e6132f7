"""State that the fused AdamW would not check: refused in a child process, which no signal ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hexloop import TrainingArguments
from tests.end_to_end.checkpoint_folder import copy_of, make_checkpoint
from tests.end_to_end.hostile.doors import ask
from tests.resealing import reseal

WEIGHT = "layers.0.weight"

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "no element": lambda moment: moment.flatten()[:0],
    "one element": lambda moment: moment.flatten()[:1],
    "a scalar": lambda moment: moment.flatten()[0],
    "transposed": lambda moment: moment.t(),
    "flat": lambda moment: moment.flatten(),
    "one row more": lambda moment: torch.cat([moment, moment[:1]]),
}

TYPES = {"float64": "F64", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "uint8": "U8", "bool": "BOOL"}

STEPS: dict[str, tuple[float, str]] = {
    "-1": (-1.0, "-1 is not a whole number from 0"),
    "nan": (float("nan"), "nan is not a whole number from 0"),
    "inf": (float("inf"), "inf is not a whole number from 0"),
    "1e30": (1e30, "1e+30 is not a whole number from 0"),
    "1.5": (1.5, "1.5 is not a whole number from 0"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert TrainingArguments(output_dir=str(folder), use_cpu=True).optim == "adamw_torch_fused"
    return make_checkpoint(folder)


def refuses(whole: Path, folder: Path, name: str, change: Callable[[Tensor], Tensor], *words: str) -> bool:
    """Return whether a resume with another tensor exits with 1, and one line that has these words and the files."""
    checkpoint = copy_of(whole, folder / "spoiled")
    path = checkpoint / "optimizer.safetensors"
    tensors = load_file(path)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path)
    reseal(checkpoint)
    (answer,) = ask(["resume", folder / "output", checkpoint])
    return answer.refuses("run_state.json, optimizer.safetensors", *words)


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_moment_of_another_shape_is_refused(whole: Path, tmp_path: Path, name: str, moment: str) -> None:
    """The kernel would write beyond its memory."""
    key = f"{WEIGHT}.{moment}"
    assert refuses(whole, tmp_path, key, SHAPES[name], f"{key} has shape")


@pytest.mark.parametrize("dtype", TYPES)
def test_a_moment_of_another_type_is_refused(whole: Path, tmp_path: Path, dtype: str) -> None:
    """The kernel would take its bytes for float32."""
    key = f"{WEIGHT}.exp_avg"
    change = lambda moment: moment.to(getattr(torch, dtype))  # noqa: E731
    assert refuses(whole, tmp_path, key, change, f"{key} has type {TYPES[dtype]}, but should have one of F32")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_no_training_leads_to_is_refused(whole: Path, tmp_path: Path, name: str) -> None:
    """The correction of the moments would divide by zero, or be NaN."""
    value, words = STEPS[name]
    assert refuses(whole, tmp_path, f"{WEIGHT}.step", lambda step: torch.full_like(step, value), f"step: {words}")


@pytest.mark.parametrize("change", [lambda step: step.reshape(1), lambda step: step.expand(3), lambda step: step.int()])
def test_a_step_of_another_form_is_refused(whole: Path, tmp_path: Path, change: Callable[[Tensor], Tensor]) -> None:
    """The kernel would read it as one float32."""
    assert refuses(whole, tmp_path, f"{WEIGHT}.step", change, f"{WEIGHT}.step has ")


def test_the_same_checkpoint_unchanged_is_resumed(whole: Path, tmp_path: Path) -> None:
    """By the same way, with the exit code 0."""
    (answer,) = ask(["resume", tmp_path / "output", copy_of(whole, tmp_path / "copy")])
    assert (answer.code, answer.errors.count("\n")) == (0, 2), "which arguments differ"
