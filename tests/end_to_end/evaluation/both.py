"""The same evaluation by hexloop's Trainer and by transformers'."""

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
"""What ends the names of metrics that depend on the machine."""


@contextmanager
def lenient(library: Any) -> Iterator[None]:
    """The warnings of transformers are its own business."""
    with warnings.catch_warnings():
        if library is transformers:
            warnings.simplefilter("ignore")
        yield


def trainer_of(library: Any, folder: Path, model: Any, arguments: dict[str, Any], **parts: Any) -> Any:
    """A Trainer of that library with a copy of `model`; `derive` is given its Trainer and gives the class to take."""
    derive = parts.pop("derive", lambda kind: kind)
    args = library.TrainingArguments(output_dir=str(folder), **{**QUIET, **arguments})
    trainer = derive(library.Trainer)(model=deepcopy(model), args=args, **parts)
    trainer.remove_callback(library.PrinterCallback)
    return trainer


def by_both(
    folder: Path, model: Any, arguments: dict[str, Any], ask: Callable[[Any], Any], **parts: Any
) -> tuple[Any, Any]:
    """What `ask` gets of a Trainer of hexloop, and of one of transformers; drawn from the same random streams."""
    answers = []
    for library in (hexloop, transformers):
        with lenient(library):
            trainer = trainer_of(library, folder / library.__name__, model, arguments, **parts)
            torch.manual_seed(3)
            answers.append(ask(trainer))
    return answers[0], answers[1]


def assert_equal(ours: Any, theirs: Any, path: str = "") -> None:
    """The same types, shapes and bits, whatever they are nested in; readings of the clock are there in both."""
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
