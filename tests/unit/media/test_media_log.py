"""The thread that keeps media: files and index, the limit on the size, resumes, and that nothing stops a run."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hexloop.adapters.clock import SystemClock
from hexloop.app.pages.media import media_in
from hexloop.domain import media_log
from hexloop.domain.folders import Folder
from hexloop.domain.media import LARGEST_DOCUMENT, LARGEST_FILE, LONGEST_LINE, KeptMedia, kept_entry
from hexloop.domain.media_log import Encoded, MediaLog, PendingMedia, fetched, lines_of_index
from hexloop.domain.run_folder import MEDIA, MEDIA_INDEX
from hexloop.ports.logger import Fact, Media, MediaKind


class Bench:
    """A log of media in a folder, and what it passed on and reported."""

    def __init__(
        self,
        folder: Path,
        run: str = "run",
        resumed_at: int = 0,
        limit: int = 1 << 20,
        pass_on: Callable[[Media], None] | None = None,
    ) -> None:
        self.folder, self.place = folder, Folder(folder, MEDIA)
        self.passed: list[Media] = []
        self.reports: list[str] = []
        self.log = MediaLog(
            self.place, run, resumed_at, limit, SystemClock(), pass_on or self.passed.append, self.reports.append
        )
        self.log.start()

    def put(self, name: str, step: int, text: str = "", index: int = 0) -> None:
        content: Mapping[str, Fact] = {"text": text or f"{name} at {step}"}
        self.log.put(PendingMedia(name, step, 0.5, "text", lambda: Encoded(content), index, size=100))

    def close(self) -> Bench:
        self.log.close(20)
        return self

    @property
    def lines(self) -> list[tuple[str, int, int]]:
        try:
            return [(each.media.name, each.media.step, each.media.index) for each in lines_of_index(self.place)]
        except FileNotFoundError:
            return []

    @property
    def files(self) -> set[str]:
        return {each.name for each in self.place.entries()} - {MEDIA_INDEX}


def test_a_medium_is_kept_and_passed_on(tmp_path: Path) -> None:
    """Its content is in a file that is named by a digest; equal contents share it."""
    bench = Bench(tmp_path)
    for step in (1, 2):
        bench.put("a", step, "the same")
    bench.close()
    assert bench.lines == [("a", 1, 0), ("a", 2, 0)]
    assert len(bench.files) == 1
    assert [each.step for each in bench.passed] == [1, 2]
    found = fetched(bench.place, bench.passed[0])
    assert found is not None
    assert found.content == {"text": "the same"}
    assert Path(found.file).read_text() == '{"text": "the same"}'
    logged = media_in(tmp_path, "run")
    assert [logged.content(each.media) for each in logged.entries] == [{"text": "the same"}] * 2
    assert media_in(tmp_path, "another run").entries == []
    assert bench.reports == []


def test_a_run_without_media_leaves_no_folder(tmp_path: Path) -> None:
    """And starts no thread."""
    bench = Bench(tmp_path).close()
    assert bench.log._thread is None
    assert list(tmp_path.iterdir()) == []


def test_a_resume_drops_what_comes_again(tmp_path: Path) -> None:
    """With its files; what another run in the folder logged stays."""
    first = Bench(tmp_path, "other")
    first.put("x", 9)
    first.close()
    bench = Bench(tmp_path)
    for step in range(1, 6):
        bench.put("a", step)
    bench.close()
    resumed = Bench(tmp_path, resumed_at=3)
    resumed.put("a", 4, "again")
    resumed.close()
    assert resumed.lines == [("x", 9, 0), ("a", 1, 0), ("a", 2, 0), ("a", 3, 0), ("a", 4, 0)]
    assert len(resumed.files) == 5
    found = media_in(tmp_path, "run")
    assert found.content(found.entries[-1].media) == {"text": "again"}


def test_the_same_step_replaces(tmp_path: Path) -> None:
    """A run that is repeated from a step shows each once."""
    bench = Bench(tmp_path)
    for text in ("one", "two"):
        bench.put("a", 1, text)
    bench.close()
    found = media_in(tmp_path, "run")
    assert [found.content(each.media) for each in found.entries] == [{"text": "two"}]


def test_the_folder_stays_within_its_limit(tmp_path: Path) -> None:
    """The first and the last step stay, and what is between them is spread over the run."""
    bench = Bench(tmp_path, limit=100_000)
    for step in range(200):
        bench.put("a", step, f"{step} " + "x" * 2000)
    bench.put("b", 7)
    bench.close()
    steps = [step for name, step, _ in bench.lines if name == "a"]
    assert ("b", 7, 0) in bench.lines
    assert (steps[0], steps[-1]) == (0, 199)
    assert len(steps) > 15
    assert max(other - one for one, other in pairwise(steps)) <= 40
    size = sum((tmp_path / MEDIA / name).stat().st_size for name in (*bench.files, MEDIA_INDEX))
    assert size <= 100_000
    assert len(bench.files) == len(bench.lines)
    assert len(bench.passed) == 201  # loggers get all


def test_the_index_stays_within_its_number_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the files are small: the first and the last step stay, and what is between them is spread."""
    monkeypatch.setattr(media_log, "MOST_LINES", 20)
    bench = Bench(tmp_path)
    for step in range(100):
        bench.put("a", step)
    bench.close()
    steps = [step for _, step, _ in bench.lines]
    assert 10 <= len(steps) <= 20
    assert (steps[0], steps[-1]) == (0, 99)
    assert max(other - one for one, other in pairwise(steps)) <= 20
    assert len(bench.files) == len(steps)
    assert len(bench.passed) == 100


def test_files_without_a_line_are_removed(tmp_path: Path) -> None:
    """As a process that is killed leaves them; others are not touched."""
    bench = Bench(tmp_path)
    bench.put("a", 1)
    bench.close()
    orphan, own = f"{'0' * 32}.png", "notes.png"
    for name in (orphan, own):
        (tmp_path / MEDIA / name).write_bytes(b"")
    Bench(tmp_path).close()
    assert orphan not in bench.files
    assert own in bench.files


def test_a_full_disk_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged once there is room again is kept."""
    replace, full = Folder.replace, [True]

    def fail(folder: Folder, path: str, data: bytes, mode: int = 0o666) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(folder, path, data, mode)

    monkeypatch.setattr(Folder, "replace", fail)
    bench = Bench(tmp_path)
    for step in range(3):
        bench.put("a", step)
    while bench.log._waiting or bench.log._is_busy:
        threading.Event().wait(0.01)
    full.clear()
    bench.put("a", 9)
    bench.close()
    assert len(bench.reports) == 1
    assert "cannot be kept" in bench.reports[0]
    assert "The run continues." in bench.reports[0]
    assert bench.lines == [("a", 9, 0)]


def test_a_line_that_a_full_disk_cut_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one starts on its own."""
    write, cut = os.write, [True]

    def short(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[:5] if cut else data)

    monkeypatch.setattr(os, "write", short)
    bench = Bench(tmp_path)
    bench.put("a", 1)
    while not bench.passed:
        threading.Event().wait(0.01)
    cut.clear()
    bench.put("a", 2)
    bench.close()
    assert bench.lines == [("a", 2, 0)]


def test_what_cannot_be_encoded_is_reported_once(tmp_path: Path) -> None:
    """By its name; the rest is kept."""
    bench = Bench(tmp_path)

    def fail() -> Encoded:
        raise ValueError("it has no pixels")

    for step in range(3):
        bench.log.put(PendingMedia("bad", step, 0.0, "image", fail))
    bench.put("a", 1)
    bench.close()
    assert bench.reports == ["The image 'bad' is left out: it has no pixels."]
    assert bench.lines == [("a", 1, 0)]


@pytest.mark.parametrize(
    ("data", "text", "kept"),
    [
        (b"x" * LARGEST_FILE, "", True),
        (b"x" * (LARGEST_FILE + 1), "", False),
        (None, "x" * (LARGEST_DOCUMENT - len('{"text": ""}')), True),
        (None, "x" * LARGEST_DOCUMENT, False),
    ],
)
def test_a_medium_that_is_too_large_is_left_out(tmp_path: Path, data: bytes | None, text: str, kept: bool) -> None:
    """The report says how large it is. What is as large as allowed is kept, and so is what follows."""
    bench = Bench(tmp_path, limit=1 << 30)
    kind: MediaKind = "text" if data is None else "audio"
    content: Mapping[str, Fact] = {"text": text} if data is None else {"rate": 8000, "seconds": 1.0, "channels": 1}
    bench.log.put(PendingMedia("large", 1, 0.5, kind, lambda: Encoded(content, data)))
    bench.put("small", 2)
    bench.close()
    assert bench.lines == [("large", 1, 0)] * kept + [("small", 2, 0)]
    assert [each.name for each in bench.passed] == ["large"] * kept + ["small"]
    size, most = (LARGEST_DOCUMENT + 12, LARGEST_DOCUMENT) if data is None else (LARGEST_FILE + 1, LARGEST_FILE)
    report = f"The {kind} 'large' is left out: it takes {size:,} bytes, and the most is {most:,}; log a smaller one."
    assert bench.reports == ([] if kept else [report])


def test_media_that_loggers_cannot_be_given_are_kept(tmp_path: Path) -> None:
    """What passes them on may fail: this is reported once."""

    def fail(media: Media) -> None:
        raise RuntimeError("the loggers are gone")

    bench = Bench(tmp_path, pass_on=fail)
    for step in (1, 2):
        bench.put("a", step)
    bench.close()
    assert bench.reports == ["Media cannot be passed to loggers (RuntimeError: the loggers are gone)."]
    assert bench.lines == [("a", 1, 0), ("a", 2, 0)]


def test_a_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    """If a medium with the same content follows."""
    bench = Bench(tmp_path)
    bench.put("a", 1, "the same")
    while not bench.passed:
        threading.Event().wait(0.01)
    (file,) = bench.files
    (tmp_path / MEDIA / file).unlink()
    bench.put("a", 2, "the same")
    bench.close()
    assert bench.reports == []
    assert bench.files == {file}
    assert [fetched(bench.place, each) is not None for each in bench.passed] == [True, True]


def write_index(folder: Path, *entries: object) -> Folder:
    """Write an index as another program may have, and return its folder."""
    (folder / MEDIA).mkdir(parents=True)
    (folder / MEDIA / MEDIA_INDEX).write_text("".join(json.dumps(each) + "\n" for each in entries))
    return Folder(folder, MEDIA)


def entry(step: int, **further: object) -> dict[str, object]:
    """Return a sound line of an index."""
    media = Media("a", step, 0.5, "text", {}, file=f"{step:032x}.json", size=1)
    return {**kept_entry(KeptMedia("run", 1.0, media)), **further}


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ([], [1, 3]),
        ("a text", [1, 3]),
        ({"name": "a", "step": 2}, [1, 3]),
        (entry(2, kind="video"), [1, 3]),
        (entry(2, file="../../secret.json"), [1, 3]),
        (entry(2, of_a_later_release="x" * LONGEST_LINE), [1, 3]),
        (entry(2, of_a_later_release="x" * 100), [1, 2, 3]),
    ],
)
def test_a_line_of_the_index_that_is_not_sound_is_skipped(tmp_path: Path, line: object, steps: list[int]) -> None:
    """So is one that is too long; those around it are read, and fields that are not known make no difference."""
    place = write_index(tmp_path, entry(1), line, entry(3))
    assert [each.media.step for each in lines_of_index(place)] == steps


def test_a_bounded_number_of_lines_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many as a run keeps, of an index that something else wrote."""
    monkeypatch.setattr(media_log, "MOST_LINES", 5)
    place = write_index(tmp_path, *map(entry, range(30)))
    assert [each.media.step for each in lines_of_index(place)] == list(range(10))


def test_the_loop_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into the queue is left out; the end waits for a bounded time."""
    monkeypatch.setattr(media_log, "MOST_WAITING", 5)
    bench, released = Bench(tmp_path), threading.Event()

    def hang() -> Encoded:
        released.wait(30)
        return Encoded({"text": "late"})

    bench.log.put(PendingMedia("slow", 1, 0.0, "text", hang))
    for step in range(20):
        bench.put("a", step)
    bench.log.close(0.05)
    assert len(bench.reports) == 2
    assert "faster than they are written" in bench.reports[0]
    assert "were not written within 0.05 s" in bench.reports[1]
    bench.put("a", 99)  # after the end
    released.set()
    assert bench.log._thread is not None
    bench.log._thread.join(10)
    assert bench.passed == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither in the place of the folder nor in that of the index; a run continues."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "one" / ".hexloop").mkdir(parents=True)
    (tmp_path / "one" / MEDIA).symlink_to(elsewhere)
    (tmp_path / "two" / MEDIA).mkdir(parents=True)
    (tmp_path / "two" / MEDIA / MEDIA_INDEX).symlink_to(elsewhere / "file")
    for name in ("one", "two"):
        bench = Bench(tmp_path / name)
        bench.put("a", 1)
        bench.close()
        assert len(bench.reports) == 1
    assert list(elsewhere.iterdir()) == []
    assert media_in(tmp_path / "one", "run").entries == []


def test_files_that_were_changed_are_not_shown(tmp_path: Path) -> None:
    """What has another type than its name says, is too large, or is a link."""
    bench = Bench(tmp_path)
    bench.put("a", 1)
    bench.close()
    (name,) = bench.files
    path, media = tmp_path / MEDIA / name, bench.passed[0]
    contents: list[Any] = [
        b"",
        b"[]",
        b'{"text": 3}',
        b"\x89PNG",
        b'{"text": "\xff"}',
        b'{"text": "' + b"a" * (5 << 20) + b'"}',
    ]
    for data in contents:
        path.write_bytes(data)
        assert fetched(bench.place, media) is None
    path.unlink()
    assert fetched(bench.place, media) is None
    (tmp_path / "secret").write_text('{"text": "secret"}')
    path.symlink_to(tmp_path / "secret")
    assert fetched(bench.place, media) is None


def kept_image(folder: Path) -> tuple[Folder, Media]:
    """Keep an image, and return it with its folder."""
    drawn, bench = io.BytesIO(), Bench(folder)
    Image.new("L", (3, 2)).save(drawn, "PNG")
    size: Mapping[str, Fact] = {"width": 3, "height": 2}
    bench.log.put(PendingMedia("digit", 1, 0.5, "image", lambda: Encoded(size, drawn.getvalue()), caption="a seven"))
    bench.close()
    return bench.place, bench.passed[0]


def test_an_image_is_fetched_with_its_size_and_the_path_of_its_file(tmp_path: Path) -> None:
    """A logger can open it."""
    found = fetched(*kept_image(tmp_path))
    assert found is not None
    assert (found.content, found.caption) == ({"width": 3, "height": 2}, "a seven")
    with Image.open(found.file) as image:
        assert image.size == (3, 2)


@pytest.mark.parametrize(("chunk", "width", "height"), [("IHDR", 1 << 20, 1 << 20), ("IHDR", 0, 2), ("IDAT", 3, 2)])
def test_an_image_whose_header_has_no_sound_size_is_not_fetched(
    tmp_path: Path, chunk: str, width: int, height: int
) -> None:
    """Too many pixels, none, or no header: nothing unpacks it."""
    place, media = kept_image(tmp_path)
    path = tmp_path / MEDIA / media.file
    data = path.read_bytes()
    path.write_bytes(data[:12] + chunk.encode() + width.to_bytes(4, "big") + height.to_bytes(4, "big") + data[24:])
    assert fetched(place, media) is None
