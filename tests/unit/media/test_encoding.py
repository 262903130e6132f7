"""What users log as media, and what becomes of it: kinds by type and shape, pixels, sound, tables, histograms."""

from __future__ import annotations

import io
import json
import math
import sys
import wave
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from hexloop.adapters.media import Options, Prepared
from hexloop.app.assembly.media import prepared
from hexloop.app.assembly.torch.tensors import array_later
from hexloop.domain.media import LARGEST_DOCUMENT, is_sound_content
from hexloop.domain.media_log import Encoded

mpl.use("Agg")
from matplotlib import pyplot as plt  # after the choice of what draws


def taken(value: Any, kind: str | None = None, **options: Any) -> list[Prepared]:
    return prepared(value, kind, Options(**options), array_later)


def encoded(value: Any, kind: str | None = None, **options: Any) -> Encoded:
    (one,) = taken(value, kind, **options)
    return one.encode()


def pixels(value: Any) -> Any:
    found = encoded(value, "image")
    assert found.data is not None
    with Image.open(io.BytesIO(found.data)) as image:
        assert image.size == (found.content["width"], found.content["height"])
        return np.asarray(image)


def test_the_type_and_the_shape_say_what_a_value_is() -> None:
    """And a list of several is several."""
    figure = plt.figure()
    kinds: list[tuple[Any, list[str]]] = [
        ("a text", ["text"]),
        (["one", "two"], ["text", "text"]),
        (torch.zeros(3, 4, 5), ["image"]),
        (np.zeros((4, 5, 3)), ["image"]),
        ([np.zeros((4, 5, 3))] * 3, ["image"] * 3),
        (Image.new("L", (2, 2)), ["image"]),
        (figure, ["image"]),
        ([figure, figure], ["image"] * 2),
        (torch.zeros(10), ["histogram"]),
        ([1.0, 2, 3], ["histogram"]),
        ([{"a": 1}], ["table"]),
        ({"a": [1, 2]}, ["table"]),
        ([[1, "b"]], ["table"]),
    ]
    for value, expected in kinds:
        assert [each.kind for each in taken(value)] == expected
    plt.close(figure)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (object(), None, "may be several things; pass kind="),
        (torch.zeros(2, 2), None, r"of the shape \(2, 2\) may be several things"),
        ("a", "video", "'video' is not known; choose one of text, table, image"),
        (["a"] * 101, None, "101 media, more than 100"),
        ("abc", "image", "is not an array of numbers"),
        (np.zeros(10), "audio", "samples per second, such as rate=16_000, not rate=None"),
        ([[1, 2], [3]], None, "2 columns, but a row with 1"),
        ({"a": [1], "b": []}, None, "columns differ in length: 'a' has 1; 'b' has 0"),
        ([[0] * 51], None, "51 columns, more than 50"),
    ],
)
def test_a_value_that_cannot_be_logged_is_refused_at_once(value: Any, kind: str | None, words: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(ValueError, match=words):
        taken(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (np.zeros((2, 3, 5, 7)), "image", r"not \(2, 3, 5, 7\)"),
        (np.zeros((3, 5, 7, 2)), "audio", "audio has the shape"),
        (np.array([math.nan]), "histogram", "no finite value"),
        (np.zeros((3, 2), np.uint64), "audio", "not uint64"),
        (np.zeros((0, 3)), "image", "an image has the shape"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_when_it_is_encoded(value: Any, kind: str, words: str) -> None:
    """In the background, where it is reported."""
    with pytest.raises(ValueError, match=words):
        encoded(value, kind, rate=8000)


def test_pixels_are_kept() -> None:
    """Channels first or last, floats from 0 to 1, integers and booleans; what is beyond is cut."""
    colours = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    assert np.array_equal(pixels(colours), colours)
    assert np.array_equal(pixels(torch.from_numpy(colours).permute(2, 0, 1)), colours)
    assert np.array_equal(pixels(colours[:, :, 0]), colours[:, :, 0])
    assert np.array_equal(pixels(colours[:, :, :1]), colours[:, :, 0])
    assert np.array_equal(pixels(colours / 255), colours)
    halves = torch.from_numpy(colours / 255).bfloat16()
    assert np.abs(pixels(halves).astype(float) - colours).max() <= 1
    assert pixels(np.array([[-1.0, 0.5, 2.0, math.nan, math.inf]])).tolist() == [[0, 128, 255, 0, 255]]
    assert pixels(np.array([[-1, 300]])).tolist() == [[0, 255]]
    assert pixels(np.array([[True, False]])).tolist() == [[255, 0]]


@given(
    arrays(
        st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_]),
        array_shapes(min_dims=2, max_dims=3, max_side=6),
    )
)
def test_any_array_is_an_image_or_refused(array: Any) -> None:
    """Nothing else is raised."""
    try:
        found = encoded(array, "image")
    except ValueError:
        return
    assert is_sound_content("image", found.content)
    assert found.data is not None


def test_a_large_image_becomes_smaller() -> None:
    """It has to be shown."""
    found = encoded(np.zeros((10_000, 5_000), np.uint8), "image")
    assert is_sound_content("image", found.content)


def test_a_value_is_taken_as_it_is_now() -> None:
    """A later change is not logged."""
    tensor, array, image = torch.zeros(3, 2, 2), np.zeros((2, 2, 3)), Image.new("L", (1, 1))
    rows = [{"a": 1}]
    waiting = [taken(each)[0] for each in (tensor, array, image, rows)]
    tensor += 1
    array += 1
    image.putpixel((0, 0), 255)
    rows[0]["a"] = 2
    plain = [np.asarray(Image.open(io.BytesIO(each.encode().data or b""))) for each in waiting[:3]]
    assert [each.max() for each in plain] == [0, 0, 0]
    assert waiting[3].encode().content["rows"] == [[1]]


def test_sound_is_a_wav() -> None:
    """Floats from -1 to 1, and integers; one channel or several, in either order."""
    for value, frames in [
        (np.array([0.0, 1.0, -1.0, 5.0, math.nan]), [[0], [32767], [-32767], [32767], [0]]),
        (np.array([[1, -2], [3, 4]], np.int16), [[1, -2], [3, 4]]),
        (np.array([[1] * 20, [2] * 20], np.int16), [[1, 2]] * 20),
        (np.array([65536, -65536], np.int32), [[1], [-1]]),
        (np.array([128, 255], np.uint8), [[0], [32512]]),
        (torch.tensor([0.5]), [[16383]]),
    ]:
        found = encoded(value, "audio", rate=8000)
        assert is_sound_content("audio", found.content)
        with wave.open(io.BytesIO(found.data or b"")) as file:
            assert (file.getframerate(), file.getnchannels()) == (8000, len(frames[0]))
            read = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        assert read.tolist() == frames


@given(st.lists(st.floats(width=64) | st.integers(-(10**6), 10**6).map(float), min_size=1))
def test_any_numbers_are_a_histogram_or_refused(values: list[float]) -> None:
    """Every finite value is counted."""
    try:
        found = encoded(values, "histogram")
    except ValueError:
        assert not np.isfinite(values).any()
        return
    assert is_sound_content("histogram", found.content)
    assert sum(found.content["counts"]) == np.isfinite(values).sum()  # type: ignore[arg-type]
    json.dumps(found.content, allow_nan=False)


def test_many_numbers_are_counted_at_even_distances() -> None:
    """So that neither memory nor time depends on the size of a model."""
    one = taken(torch.arange(3_000_000), "histogram")[0]
    assert one.size <= 4 << 20
    counts = one.encode().content["counts"]
    assert isinstance(counts, list)
    assert 500_000 < sum(counts) <= 1 << 20
    assert max(counts) < 1.1 * min(counts)


def test_counts_and_edges_are_a_histogram() -> None:
    """As numpy returns them."""
    found = encoded(np.histogram([1.0, 2.0, 2.0], 2), "histogram")
    assert found.content == {"edges": [1.0, 1.5, 2.0], "counts": [1, 2]}


def test_rows_are_a_table() -> None:
    """Mappings by column, lists with names, mappings of columns, frames; scalars become plain values."""
    expected = {"columns": ["a", "b"], "rows": [[1, "x"], [2, None]]}
    assert encoded([{"a": 1, "b": "x"}, {"a": torch.tensor(2)}]).content == expected
    assert encoded([[1, "x"], (np.int64(2), None)], columns=["a", "b"]).content == expected
    assert encoded({"a": [1, 2], "b": ["x", None]}).content == expected
    assert encoded([["x", math.inf, [1], 10**400]]).content["rows"] == [["x", "inf", "[1]", str(10**400)]]


def test_a_frame_of_pandas_is_a_table() -> None:
    """Its index is left out."""
    pandas = pytest.importorskip("pandas")
    found = encoded(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}))
    assert found.content == {"columns": ["a", "b"], "rows": [[1, "x"], [2, "y"]]}


def test_long_texts_and_tables_are_cut() -> None:
    """And say so."""
    (text,) = taken("a" * 200_000)
    assert text.note == "the first 100,000 of 200,000 characters"
    assert is_sound_content("text", text.encode().content)
    (table,) = taken([{"a": "b" * 3000}] * 3000)
    assert table.note == "the first 500 of 3,000 rows"
    content = table.encode().content
    assert is_sound_content("table", content)
    assert len(json.dumps(content)) < LARGEST_DOCUMENT


@given(st.text(st.characters(), max_size=30))
def test_any_text_can_be_written_and_read(text: str) -> None:
    """Also one with lone surrogates, which cannot be encoded."""
    for found in (encoded(text), encoded([{"a" + text: text}])):
        content = json.loads(json.dumps(dict(found.content)))
        assert is_sound_content("text" if "text" in content else "table", content)
        json.dumps(content).encode()
        str(content).encode()


def test_a_figure_is_drawn_as_it_is_now() -> None:
    """And stays usable."""
    figure, axes = plt.subplots(figsize=(2, 1), dpi=50)
    axes.plot([1, 2])
    found = encoded(figure)
    assert (found.content["width"], found.content["height"]) == (100, 50)
    axes.plot([2, 1])
    assert encoded(figure).data != found.data
    plt.close(figure)


def test_without_pillow_there_is_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which names what to install."""
    from hexloop.adapters import media

    monkeypatch.delitem(sys.modules, "PIL")
    monkeypatch.setattr(media, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package pillow, .*pip install 'pillow>="):
        taken(np.zeros((2, 2, 3)))
