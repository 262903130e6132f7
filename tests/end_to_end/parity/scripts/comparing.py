"""Compares the results and files of a script run with both libraries."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch

from tests.end_to_end.parity.compare import OPERATIONS, TIMES
from tests.end_to_end.parity.scripts.observing import Observation

TOLERANCE = 1e-5

PICKLED = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}
"""Files that transformers writes with pickle, and hexloop therefore does not write."""

OWN_FILES = {
    "manifest.json": "says what the checkpoint consists of",
    "run_state.json": "the state of the run and of its components, instead of scheduler.pt and rng_state.pth",
    "optimizer.safetensors": "instead of optimizer.pt",
    "random.safetensors": "instead of rng_state.pth, for the streams of a device",
    "data.safetensors": "where the data stand: their generators",
    "losses.safetensors": "the losses since the last log",
    "training_args.json": "instead of training_args.bin",
    ".hexloop": "what each step came to, what the machine did, samples of generated texts, and that the run is over",
}
"""Files and folders that only hexloop writes."""


def assert_same_script(ours: Observation, reference: Observation, length_known: bool = True) -> None:
    """Metrics, predictions, logs, traces and files are equal, and the models have learned."""
    losses = [entry["loss"] for entry in history(ours) if "loss" in entry]
    third = max(1, len(losses) // 3)
    assert sum(losses[-third:]) < sum(losses[:third]), "the model learned nothing, so little was compared"
    assert_same_metrics(ours, reference)
    assert_same_predictions(ours, reference)
    assert_same_trace(ours, reference, length_known)
    assert_same_values(history(ours), history(reference), "log_history")
    assert_same_files(ours, reference)
    assert_same_documents(ours, reference)
    assert_same_weights(ours, reference)


def assert_same_trace(ours: Observation, reference: Observation, length_known: bool) -> None:
    """Events are equal: their steps, epochs, flags and keywords.

    If the length of the data is unknown, an epoch is shorter than estimated: `state.epoch` is then an integer as soon
    as the next one starts in hexloop, and from its first step in transformers.
    """
    one, other = ours.outcome.events, reference.outcome.events
    if not length_known:
        one, other = without_new_epochs(one), without_new_epochs(other)
    assert one == other
    assert ours.outcome.keywords == reference.outcome.keywords


def without_new_epochs(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the events, without the epoch between the start of an epoch and the end of its first step."""
    kept, new = [], False
    for event, step, epoch, switches in events:
        new = event == "on_epoch_begin" or (new and event != "on_step_end")
        kept.append((event, step, None if new else epoch, switches))
    return kept


def history(observation: Observation) -> Any:
    return observation.results.trainer.state.log_history


def assert_same_metrics(ours: Observation, reference: Observation) -> None:
    """The metrics of `train`, `evaluate` and `predict` have the same names and values.

    Operation counts are excluded: transformers' PrinterCallback removes them.
    """
    for each in (ours, reference):
        each.results.measured["train"].pop(OPERATIONS, None)
    assert_same_values(ours.results.measured, reference.results.measured, "metrics")


def assert_same_predictions(ours: Observation, reference: Observation) -> None:
    """The arrays of `predict` have the same structure, shapes, types and values."""
    one, other = ours.results.predicted, reference.results.predicted
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert_same_arrays(one, other)


def assert_same_arrays(one: Any, other: Any) -> None:
    if isinstance(other, (tuple, list)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_arrays(left, right)
    elif other is None:
        assert one is None
    else:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=1e-6)


def assert_same_files(ours: Observation, reference: Observation) -> None:
    """Every folder has the same file names, except for the listed ones."""
    one, other = (
        {name for name in each.files() if (OWN_FILES.keys() | PICKLED).isdisjoint(PurePosixPath(name).parts)}
        for each in (ours, reference)
    )
    assert one == other


def assert_same_documents(ours: Observation, reference: Observation) -> None:
    """JSON files that both write are equal: states, metrics, configurations, tokenizers."""
    for name in sorted(ours.files() & reference.files()):
        if name.endswith(".json") and OWN_FILES.keys().isdisjoint(PurePosixPath(name).parts):
            one, other = ours.document(name), reference.document(name)
            if PurePosixPath(name).name in ("train_results.json", "all_results.json"):
                one.pop(OPERATIONS, None)
                other.pop(OPERATIONS, None)
            if PurePosixPath(name).name == "generation_config.json":  # transformers' evaluation adds the defaults
                assert one.keys() <= other.keys(), name
                one = {each: value for each, value in one.items() if not each.startswith("_")}
                other = {each: other[each] for each in one}
            assert_same_values(one, other, name)


def assert_same_weights(ours: Observation, reference: Observation) -> None:
    """Models load the same tensors from every folder; they differ by rounding only."""
    for (name, one), (other_name, other) in zip(ours.weights(), reference.weights(), strict=True):
        assert name == other_name
        assert one.keys() == other.keys(), name
        difference = math.hypot(*(float(torch.dist(one[each].double(), other[each].double())) for each in one))
        size = math.hypot(*(float(each.double().norm()) for each in other.values()))
        assert difference <= 10 * TOLERANCE * size, f"{name}: {difference:.2g} of {size:.2g}"


def assert_same_values(one: Any, other: Any, where: str) -> None:
    """Compare nested values: names, lengths and strings exactly, numbers up to rounding, times not at all."""
    if isinstance(other, dict):
        assert one.keys() == other.keys(), f"{where}: {sorted(one.keys() ^ other.keys())} are in one of the two only"
        for name in other:
            if name == OPERATIONS and other[name] == 0:
                assert one[name] > 0, where
            elif not str(name).endswith(TIMES):
                assert_same_values(one[name], other[name], f"{where}, {name}")
    elif isinstance(other, list):
        assert len(one) == len(other), where
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same_values(left, right, f"{where}, {place}")
    elif isinstance(other, float) and isinstance(one, (int, float)):
        assert math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-7), f"{where}: {one!r}, {other!r}"
    else:
        assert one == other, f"{where}: {one!r}, {other!r}"
