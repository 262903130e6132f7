"""Predictions as the bytes of a file, in formats that hold data alone and are read without running any code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hexloop.domain.errors import DataError
from hexloop.domain.json_documents import finite_json


def to_npz(predictions: Any, labels: Any) -> bytes:
    """A compressed archive of arrays of shape (samples, ...): `predictions` and, where there are any, `label_ids`.

    Several outputs are predictions_0, predictions_1 and so on, or predictions_<name>. Raises DataError where one is an
    array of Python objects, which numpy would pickle.
    """
    arrays: dict[str, Any] = dict((*_named("predictions", predictions), *_named("label_ids", labels)))
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise DataError(
                f"You chose to write .npz, but {name} is an array of Python objects, which only a pickle can hold; "
                "let preprocess_logits_for_metrics return tensors, or write .jsonl."
            )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def to_jsonl(predictions: Any, labels: Any) -> bytes:
    """A line {"prediction": ..., "label": ...} for each sample, without a label where there are none."""
    rows = _rows(predictions)
    if labels is None:
        lines: Iterator[dict[str, Any]] = ({"prediction": row} for row in rows)
    else:
        lines = ({"prediction": row, "label": label} for row, label in zip(rows, _rows(labels), strict=True))
    return "".join(f"{json.dumps(finite_json(line), allow_nan=False)}\n" for line in lines).encode()


def _named(name: str, values: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The arrays in `values`, each under a name of its own."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _named(f"{name}_{key}", value)
    elif isinstance(values, tuple | list):
        for index, value in enumerate(values):
            yield from _named(f"{name}_{index}", value)
    elif values is not None:
        yield name, np.asarray(values)


def _rows(values: Any) -> Iterator[Any]:
    """What each sample has of `values`: an item of an array, or the items of several arrays in the same structure."""
    if isinstance(values, dict):
        for row in zip(*map(_rows, values.values()), strict=True):
            yield dict(zip(values, row, strict=True))
    elif isinstance(values, tuple | list):
        yield from map(list, zip(*map(_rows, values), strict=True))
    else:
        yield from np.asarray(values).tolist()


FORMATS: dict[str, Callable[[Any, Any], bytes]] = {".npz": to_npz, ".jsonl": to_jsonl}
"""How predictions and labels become a file, by how its name ends."""
