"""Encodes what users log as media: images by Pillow, audio as WAV, and tables, texts and histograms as plain values.

Each function takes its value as it is at the call, and returns what encodes it, which another thread may call. It
raises `ValueError` with what is wrong with the value.
"""

from __future__ import annotations

import io
import math
import sys
import wave
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from hexloop.domain.installation import how_to_install
from hexloop.domain.media import (
    LARGEST_DOCUMENT,
    LARGEST_FILE,
    LARGEST_RATE,
    LARGEST_STEP,
    LONGEST_CELL,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_BINS,
    MOST_COLUMNS,
    MOST_PIXELS,
    MOST_ROWS,
)
from hexloop.domain.media_log import Encoded
from hexloop.domain.wording import listed
from hexloop.ports.logger import Fact, MediaKind

Array: TypeAlias = npt.NDArray[Any]

Later: TypeAlias = Callable[[], Array]
"""Returns an array that was taken before, in another thread."""

MOST_VALUES = 1 << 20
"""Values of a histogram. Of more, values at even distances are counted."""

MOST_CHANNELS = 16
"""Channels of audio."""

BINS = 64
"""Bins of a histogram, by default."""

LARGEST_EDGE = 1e300
"""The largest edge of a histogram; values beyond it are counted at it."""

PILLOW = "logging images needs the package pillow, which is not installed; {how}"


@frozen
class Prepared:
    """A value that was taken. size: bytes that it holds until it is encoded. note: what was left out of it."""

    kind: MediaKind
    encode: Callable[[], Encoded] = field(eq=False)
    size: int = 0
    note: str = ""


@frozen
class Options:
    """What else a user says of a value. bins: of a histogram. rate: of audio. columns: of a table."""

    bins: int = BINS
    rate: int | None = None
    columns: Sequence[str] | None = None


def text(value: object) -> Prepared:
    """Take a text, cut to its longest."""
    whole = _plain(str(value))
    cut = whole[:LONGEST_TEXT]
    note = f"the first {LONGEST_TEXT:,} of {len(whole):,} characters" if len(whole) > LONGEST_TEXT else ""
    return Prepared("text", lambda: Encoded({"text": cut}), 4 * len(cut), note)


def table(value: Any, options: Options) -> Prepared:
    """Take rows: mappings by column, lists of cells with `columns`, a mapping of columns, or a frame of pandas."""
    columns, rows = _rows_of(value, options.columns)
    if len(columns) > MOST_COLUMNS:
        raise ValueError(f"it has {len(columns):,} columns, more than {MOST_COLUMNS}")
    names = [_plain(str(each)).replace("\n", " ")[:LONGEST_NAME] for each in columns]
    names = ["".join(letter if letter.isprintable() else " " for letter in each) for each in names]
    count = max(len(rows), _length_of_frame(value))
    cells: list[Fact] = [[_cell(each) for each in row] for row in rows[:MOST_ROWS]]
    note = f"the first {MOST_ROWS} of {count:,} rows" if count > MOST_ROWS else ""

    def encode() -> Encoded:
        kept = cells
        while len(kept) > 1 and _length(kept) > LARGEST_DOCUMENT - (1 << 16):
            kept = kept[: len(kept) // 2]
        return Encoded({"columns": names, "rows": kept})

    return Prepared("table", encode, _length(cells), note)


def _length_of_frame(value: Any) -> int:
    """Return the rows of a frame of pandas, of which not all were read; 0 for anything else."""
    return len(value) if hasattr(value, "itertuples") else 0


def _length(cells: Iterable[Any]) -> int:
    """Return more than the bytes that cells take as JSON, in which a character may take six."""
    return sum(20 + (6 * len(each) if isinstance(each, str) else 20) for row in cells for each in row)


def _rows_of(value: Any, columns: Sequence[str] | None) -> tuple[list[Any], list[Sequence[Any]]]:
    if isinstance(value, Mapping):
        lists = [list(each) for each in value.values()]
        if len({len(each) for each in lists}) > 1:
            lengths = listed([f"{name!r} has {len(each)}" for name, each in zip(value, lists, strict=True)])
            raise ValueError(f"its columns differ in length: {lengths}")
        return list(value), list(zip(*lists, strict=True))
    if hasattr(value, "itertuples") and hasattr(value, "columns"):  # a frame of pandas
        return list(value.columns), list(islice(value.itertuples(index=False, name=None), MOST_ROWS + 1))
    rows = list(value)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else list(columns)
        return names, [[row.get(name) for name in names] for row in rows]
    rows = [list(row) if isinstance(row, Sequence) and not isinstance(row, str) else [row] for row in rows]
    width = max(map(len, rows), default=0)
    names = [str(number) for number in range(1, width + 1)] if columns is None else list(columns)
    if any(len(row) != len(names) for row in rows):
        raise ValueError(
            f"it has {len(names)} columns, but a row with {next(len(r) for r in rows if len(r) != len(names))}"
        )
    return names, rows


def _cell(value: Any) -> Fact:
    """Return a value as a cell: numbers, booleans, None and texts as they are, scalars of arrays as numbers."""
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "item") and math.prod(getattr(value, "shape", (0,))) == 1:
        value = value.item()
    if type(value) in (int, float) and abs(value) < LARGEST_STEP:  # not infinite, and not NaN
        return value  # type: ignore[no-any-return]
    return _plain(str(value))[:LONGEST_CELL]


def histogram(later: Later, options: Options, size: int) -> Prepared:
    """Take numbers, or a pair of counts and edges. Values that are not finite are counted apart."""
    bins = options.bins
    if isinstance(bins, bool) or not isinstance(bins, int) or not 0 < bins <= MOST_BINS:
        raise ValueError(f"bins={bins!r} must be a whole number from 1 to {MOST_BINS}")

    def encode() -> Encoded:
        values = later().reshape(-1)
        values = values[:: math.ceil(len(values) / MOST_VALUES) or 1].astype(np.float64)
        finite = values[np.isfinite(values)]
        if not len(finite):
            raise ValueError("it has no finite value")
        return Encoded(_counted(*_histogram(finite, bins)))

    return Prepared("histogram", encode, size)


def counted_histogram(counts: Any, edges: Any) -> Prepared:
    """Take the counts and the edges of a histogram, as numpy returns them."""
    found = _counted(np.array(counts), np.array(edges, np.float64))
    return Prepared("histogram", lambda: Encoded(found), 16 * len(np.atleast_1d(edges)))


@np.errstate(all="ignore")  # of the differences of large values
def _histogram(values: Array, bins: int) -> tuple[Array, Array]:
    try:
        counts, edges = np.histogram(values, bins)
    except ValueError:  # the range is too small, or too large, for so many bins
        counts, edges = np.array([len(values)]), np.array([values.min(), values.max()])
    if not bool(np.all(np.diff(edges) > 0)) or not bool(np.isfinite(edges).all()):
        low, high = np.nextafter(values.min(), -np.inf), np.nextafter(values.max(), np.inf)
        below, above = np.nextafter(LARGEST_EDGE, 0), np.nextafter(-LARGEST_EDGE, 0)
        counts, edges = (
            np.array([len(values)]),
            np.array([np.clip(low, -LARGEST_EDGE, below), np.clip(high, above, LARGEST_EDGE)]),
        )
    return counts, edges


def _counted(counts: Array, edges: Array) -> dict[str, Fact]:
    return {"edges": edges.astype(np.float64).tolist(), "counts": counts.tolist()}


def image_of_array(later: Later, size: int) -> Prepared:
    """Take pixels: (height, width), (height, width, channels) or (channels, height, width) with 1, 3 or 4 channels.

    Floats are from 0 to 1, integers from 0 to 255; what is beyond is cut.
    """
    require_pillow()
    return Prepared("image", lambda: _png(_image(_pixels(later()))), size)


def image_of_pillow(value: Any) -> Prepared:
    """Take an image of Pillow."""
    kept = value.copy()
    return Prepared("image", lambda: _png(kept), kept.width * kept.height * 4)


def image_of_figure(figure: Any) -> Prepared:
    """Take a figure of matplotlib, which is drawn at once: it can only be drawn in the thread that changes it."""
    buffer = io.BytesIO()
    if find_spec("PIL") is None:
        require_pillow()
    figure.savefig(buffer, format="png", dpi=figure.dpi, pil_kwargs={"compress_level": 1})
    data = buffer.getvalue()

    def encode() -> Encoded:
        from PIL import Image

        with Image.open(io.BytesIO(data)) as opened:
            width, height = opened.size
        return Encoded({"width": width, "height": height}, data)

    return Prepared("image", encode, len(data))


def require_pillow() -> None:
    """Raise ValueError if Pillow is not installed."""
    if "PIL" not in sys.modules and find_spec("PIL") is None:
        raise ValueError(PILLOW.format(how=how_to_install("media")))


def _pixels(array: Array) -> Array:
    """Return pixels as bytes, (height, width) or (height, width, channels)."""
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)) or not array.size:
        raise ValueError(f"an image has the shape (height, width) or with 1, 3 or 4 channels, not {array.shape}")
    step = math.ceil(math.sqrt(array.shape[0] * array.shape[1] / MOST_PIXELS))
    array = array[::step, ::step]
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype.kind == "f":
        return (np.nan_to_num(array.astype(np.float32), posinf=1.0).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise ValueError(f"an image has numbers, not {array.dtype}")
    return array.clip(0, 255).astype(np.uint8)


def _image(pixels: Array) -> Any:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(pixels))


def _png(image: Any) -> Encoded:
    """Encode an image of Pillow, made smaller if it has too many pixels."""
    if image.width * image.height > MOST_PIXELS:
        image.thumbnail((4096, 4096))
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=4)
    return Encoded({"width": image.width, "height": image.height}, buffer.getvalue())


def audio(later: Later, options: Options, size: int) -> Prepared:
    """Take samples of sound: (samples,), (samples, channels) or (channels, samples). Floats are from -1 to 1."""
    rate = options.rate
    if isinstance(rate, bool) or not isinstance(rate, int) or not 0 < rate < LARGEST_RATE:
        raise ValueError(f"audio needs its samples per second, such as rate=16_000, not rate={rate!r}")
    return Prepared("audio", lambda: _wav(later(), rate), size)


def _wav(array: Array, rate: int) -> Encoded:
    if array.ndim == 2 and array.shape[0] <= MOST_CHANNELS < array.shape[1]:
        array = array.T
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not array.size or array.shape[1] > MOST_CHANNELS:
        raise ValueError(f"audio has the shape (samples,) or (samples, channels), not {array.shape}")
    if array.shape[0] * array.shape[1] * 2 > LARGEST_FILE - 1024:
        raise ValueError(f"it has {array.shape[0]:,} samples, more than fit into {LARGEST_FILE >> 20} MiB")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(array.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(_sound(array).tobytes())
    seconds = array.shape[0] / rate
    return Encoded({"rate": rate, "seconds": seconds, "channels": array.shape[1]}, buffer.getvalue())


def _sound(array: Array) -> Array:
    """Return samples as little-endian numbers of 16 bits."""
    if array.dtype.kind == "f":
        return (np.nan_to_num(array.astype(np.float64)).clip(-1, 1) * 32767).astype("<i2")
    if array.dtype == np.uint8:
        return ((array.astype(np.int16) - 128) * 256).astype("<i2")
    if array.dtype == np.int32:
        return (array >> 16).astype("<i2")
    if array.dtype != np.int16:
        raise ValueError(f"audio has floats, or integers of 8, 16 or 32 bits, not {array.dtype}")
    return array.astype("<i2")


def _plain(value: str) -> str:
    """Return a text without lone surrogates, which cannot be encoded."""
    return value.encode("utf-8", "replace").decode()
