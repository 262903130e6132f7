"""What the board answers for files of media, and what a page shows of them, without a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.media_section import Panel, file_shown, shown_content
from hexloop.domain.run_folder import MEDIA
from hexloop.ports.logger import Media

NAME = "0" * 32


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / MEDIA).mkdir(parents=True, exist_ok=True)
    (folder / MEDIA / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{NAME}.html", "text"),
        (f"{NAME}.png", "text"),
        (f"{NAME}.json", "video"),
        (f"../{NAME}.json", "text"),
        (f"{NAME}.json/", "text"),
        ("media.jsonl", "text"),
        ("", ""),
        (f"{NAME}.json\0", "text"),
    ],
)
def test_other_files_are_not_shown(tmp_path: Path, name: str, kind: str) -> None:
    """Nor does any error but that of a missing file occur."""
    for each in (f"{NAME}.json", f"{NAME}.png", f"{NAME}.html"):
        write(tmp_path, each, b'{"text": "a"}')
    with pytest.raises(OSError):
        file_shown(tmp_path, name, kind)


def test_a_document_is_cleaned_and_an_image_is_as_it_is(tmp_path: Path) -> None:
    """Secrets and control characters are not shown; a page of HTML under the name of an image is refused."""
    write(
        tmp_path, f"{NAME}.json", json.dumps({"text": "a\x1b[31m b\nhf_abcdefghijklmnopqrstuvwxyz0123456789"}).encode()
    )
    data, kind = file_shown(tmp_path, f"{NAME}.json", "text")
    text = json.loads(data)["text"]
    assert kind == "application/json"
    assert "\x1b" not in text
    assert "hf_abc" not in text
    assert "\n" in text
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x02rest"
    write(tmp_path, f"{NAME}.png", png)
    assert file_shown(tmp_path, f"{NAME}.png", "image") == (png, "image/png")
    for wrong in (b"<html>", png.replace(b"\0\0\0\x03", b"\xff\xff\xff\xff"), b"\x89PNG\r\n\x1a\n"):
        write(tmp_path, f"{NAME}.png", wrong)
        with pytest.raises(OSError):
            file_shown(tmp_path, f"{NAME}.png", "image")


@given(st.sets(st.integers(0, 10**6), min_size=1), st.integers(1, 30))
def test_steps_are_kept_evenly(steps: set[int], most: int) -> None:
    """At most so many, with the last, and of several the first."""
    panel = Panel("a", {0: {step: [Media("a", step, 0.0, "text", {})] for step in steps}})
    panel.keep(most)
    kept = sorted(panel.steps[0])
    assert len(kept) <= most
    assert kept[-1] == max(steps)
    assert kept[0] == min(steps) or most == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_content_can_be_shown(content: object) -> None:
    """It stays JSON of the same shape."""
    json.dumps(shown_content(content))
