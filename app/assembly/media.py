"""What a value that a user logs as media is, and how it is taken: by its type, its shape, and the kind that is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hexloop.adapters.media import (
    BINS,
    MOST_VALUES,
    Later,
    Options,
    Prepared,
    audio,
    counted_histogram,
    histogram,
    image_of_array,
    image_of_figure,
    image_of_pillow,
    table,
    text,
)
from hexloop.domain.media import KINDS, MOST_TOGETHER

__all__ = ["BINS", "Options", "Prepared"]
"""Adapters' names that the rest of the app gets from here."""

ArrayOf = Callable[[Any, int | None], Later | None]
"""`Framework.array_later`."""


def prepared(value: Any, kind: str | None, options: Options, array_of: ArrayOf) -> list[Prepared]:
    """Take a value, or a list of several of the same kind, as it is now. array_of: takes an array of the framework.

    Raises ValueError with what is wrong with it.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"the kind {kind!r} is not known; choose one of {', '.join(KINDS)}")
    several = _several(value, kind)
    if several is None:
        return [_prepared(value, kind, options, array_of)]
    if len(several) > MOST_TOGETHER:
        raise ValueError(f"it has {len(several):,} media, more than {MOST_TOGETHER} at once")
    return [_prepared(each, kind, options, array_of) for each in several]


def _several(value: Any, kind: str | None) -> list[Any] | None:
    """Return the media in a list; None if the value is one medium."""
    if not isinstance(value, list | tuple) or not value or kind in ("table", "histogram"):
        return None
    if all(isinstance(each, str) for each in value) or all(_is_picture(each) or _is_figure(each) for each in value):
        return list(value)
    if all(hasattr(each, "shape") and len(each.shape) > 0 for each in value):
        return list(value)
    return None


def _prepared(value: Any, kind: str | None, options: Options, array_of: ArrayOf) -> Prepared:
    if kind == "text" or (kind is None and isinstance(value, str)):
        return text(value)
    if _is_figure(value):
        return image_of_figure(value)
    if _is_picture(value):
        return image_of_pillow(value)
    if kind == "table" or (kind is None and _is_table(value)):
        return table(value, options)
    if kind == "histogram" and isinstance(value, tuple) and len(value) == 2:
        return counted_histogram(*value)
    shape = getattr(value, "shape", None)
    if kind is None:
        kind = _kind_of(value, shape)
    later, size = _taken(value, MOST_VALUES if kind == "histogram" else None, array_of)
    if kind == "image":
        return image_of_array(later, size)
    return audio(later, options, size) if kind == "audio" else histogram(later, options, size)


def _kind_of(value: Any, shape: Any) -> str:
    if shape is not None and len(shape) == 3:
        return "image"
    if shape is not None and len(shape) == 1:
        return "histogram"
    if isinstance(value, Sequence) and all(isinstance(each, int | float) for each in value):
        return "histogram"
    of_shape = "" if shape is None else f" of the shape {tuple(shape)}"
    raise ValueError(
        f"a value of the type {type(value).__name__}{of_shape} may be several things; pass kind=, one of {', '.join(KINDS)}"
    )


def _taken(value: Any, most: int | None, array_of: ArrayOf) -> tuple[Later, int]:
    """Return what returns an array as it is now, and the bytes that it holds until then."""
    later = array_of(value, most)
    if later is not None:
        count = int(np.prod(value.shape))
        return later, 4 * (count if most is None else min(count, most))
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"a value of the type {type(value).__name__} is not an array of numbers")
    if most is not None and array.size > most:
        array = array.reshape(-1)[:: -(-array.size // most)]
    array = array.copy()
    return lambda: array, array.nbytes


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping) or (hasattr(value, "itertuples") and hasattr(value, "columns")):
        return True
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(row, Mapping | list | tuple) for row in value)
    )


def _is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow, without importing it."""
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def _is_figure(value: Any) -> bool:
    """Return whether a value is a figure of matplotlib, without importing it."""
    figure = sys.modules.get("matplotlib.figure")
    return figure is not None and isinstance(value, figure.Figure)
