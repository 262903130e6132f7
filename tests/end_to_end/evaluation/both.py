"""The same evaluation with hexloop's Trainer and with transformers'."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import hexloop

QUIET = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "per_device_eval_batch_size": 4}

CLOCK_READINGS = ("runtime", "per_second", "preparation_time")
"""Suffixes of metrics that depend on the machine."""


@contextmanager
def lenient(library: Any) -> Iterator[None]:
    """Ignore warnings of transformers itself."""
    with warnings.catch_warnings():
        if library is transformers:
            warnings.simplefilter("ignore")
        yield


def trainer_of(library: Any, folder: Path, model: Any, arguments: dict[str, Any], **parts: Any) -> Any:
    """Return the library's Trainer with a copy of `model`; `derive` maps its Trainer class to the class to use."""
    derive = parts.pop("derive", lambda kind: kind)
    args = library.TrainingArguments(output_dir=str(folder), **{**QUIET, **arguments})
    trainer = derive(library.Trainer)(model=deepcopy(model), args=args, **parts)
    trainer.remove_callback(library.PrinterCallback)
    return trainer


def by_both(
    folder: Path, model: Any, arguments: dict[str, Any], ask: Callable[[Any], Any], **parts: Any
) -> tuple[Any, Any]:
    """Return the results of `ask` for a Trainer of each library, with equal random states."""
    answers = []
    for library in (hexloop, transformers):
        with lenient(library):
            trainer = trainer_of(library, folder / library.__name__, model, arguments, **parts)
            torch.manual_seed(3)
            answers.append(ask(trainer))
    return answers[0], answers[1]


def assert_equal(ours: Any, theirs: Any, path: str = "") -> None:
    """Compare types, shapes and bits at any depth; clock readings must exist in both."""
    if isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray), path
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), path
        np.testing.assert_array_equal(ours, theirs, err_msg=path)
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs), path
        assert list(ours) == list(theirs), path
        for name, value in theirs.items():
            if not str(name).endswith(CLOCK_READINGS):
                assert_equal(ours[name], value, f"{path}[{name!r}]")
    elif isinstance(theirs, tuple | list):
        assert type(ours).__name__ == type(theirs).__name__, path
        assert len(ours) == len(theirs), path
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_equal(one, other, f"{path}[{index}]")
    elif isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs), path
    else:
        assert ours == theirs, path
