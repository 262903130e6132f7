"""The section of a page with the media of runs: text, tables, images, histograms and audio, over the steps.

A script draws it. A report has the media in itself, up to a size; a page of the board names addresses of them.
"""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import urlencode

from attrs import define, field
from markupsafe import Markup

from hexloop.app.assembly.storage import is_elsewhere
from hexloop.app.pages.media import LoggedMedia, media_in
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.templates import clean, section
from hexloop.domain.folders import Folder
from hexloop.domain.media import ENDINGS, is_file_name
from hexloop.domain.media_log import content_of, file_of
from hexloop.domain.redaction import printable_lines, redact
from hexloop.domain.run_folder import MEDIA
from hexloop.ports.logger import Media, MediaKind

MOST_STEPS = 300
"""Steps of a name and a run that are shown, spread over the run, with the first and the last."""

MOST_ITEMS = 6_000
"""Media of a page."""

MOST_EMBEDDED = 24_000_000
"""Bytes of the media that are part of a report. Beyond them, steps in the middle are left out."""

TYPES = {"png": "image/png", "wav": "audio/wav"}

Addresses: TypeAlias = Sequence[str]
"""What the board calls each run, in the order of the runs."""


@define
class Panel:
    """The media of one name. steps: of each run, by its number, from step to what was logged at it."""

    name: str
    steps: dict[int, dict[int, list[Media]]] = field(factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(media.size for known in self.steps.values() for found in known.values() for media in found)

    @property
    def most_steps(self) -> int:
        """The number of steps of the run that has the most."""
        return max(map(len, self.steps.values()), default=0)

    def keep(self, most: int) -> None:
        """Keep at most so many steps of each run, at even distances."""
        for run, known in self.steps.items():
            steps = sorted(known)
            if len(steps) > most:
                last = len(steps) - 1
                chosen = (
                    sorted({round(number * last / max(most - 1, 1)) for number in range(most)}) if most > 1 else [last]
                )
                self.steps[run] = {steps[number]: known[steps[number]] for number in chosen}


@define
class ShownMedia:
    """The media of the runs of a page. remarks: sentences about what could not be read, or is left out."""

    panels: list[Panel] = field(factory=list)
    logged: list[LoggedMedia] = field(factory=list)
    remarks: list[str] = field(factory=list)


def shown_media(records: Sequence[RunRecord], embedded: bool) -> ShownMedia:
    """Return the media of runs by name. embedded: whether they become part of the page, which bounds their size."""
    shown = ShownMedia()
    panels: dict[str, Panel] = {}
    for number, record in enumerate(records):
        logged = LoggedMedia() if is_elsewhere(record.folder) else media_in(record.folder, record.history.name)
        shown.logged.append(logged)
        shown.remarks += (f"{record.label}: {remark}" for remark in logged.remarks)
        for each in logged.entries:
            panel = panels.setdefault(each.media.name, Panel(each.media.name))
            panel.steps.setdefault(number, {}).setdefault(each.media.step, []).append(each.media)
    shown.panels = list(panels.values())
    for panel in shown.panels:
        panel.keep(MOST_STEPS)
    _keep_within(
        shown, MOST_ITEMS, lambda panel: sum(len(each) for run in panel.steps.values() for each in run.values())
    )
    if embedded:
        _keep_within(shown, MOST_EMBEDDED, lambda panel: panel.size)
    return shown


def _keep_within(shown: ShownMedia, most: int, measure: Callable[[Panel], int]) -> None:
    """Halve the steps of what is largest until the rest fits; leave out what does not fit with one step."""
    left_out = False
    while sum(map(measure, shown.panels)) > most:
        largest = max(shown.panels, key=measure)
        left_out = True
        if largest.most_steps > 1:
            largest.keep(largest.most_steps // 2)
        else:
            shown.panels.remove(largest)
    if left_out:
        shown.remarks.append("Steps of media are left out of this page, because there are many.")


def media_section(shown: ShownMedia) -> Markup:
    """Return the content of the section, in which a script draws; nothing if no media were logged."""
    if not shown.panels:
        return Markup()
    panels = [
        {"id": f"media-{number}", "name": panel.name, "steps": f"{panel.most_steps:,}"}
        for number, panel in enumerate(shown.panels)
    ]
    return section("media", panels=panels, remarks=shown.remarks)


def media_data(shown: ShownMedia, addresses: Addresses | None) -> list[dict[str, Any]]:
    """Return what the script draws. addresses: None if the media become part of the page."""
    remaining = [2 * MOST_EMBEDDED]  # the sizes in an index may be false

    def source(run: int, media: Media) -> dict[str, Any] | None:
        if addresses is not None:
            query = urlencode([("run", addresses[run]), ("file", media.file), ("kind", media.kind)], errors="replace")
            return {"address": f"media?{query}"}
        if media.size > remaining[0]:
            return None
        found = embedded_media(shown.logged[run], media)
        remaining[0] -= len(str(found))
        return found

    return [
        {
            "id": f"media-{number}",
            "name": clean(panel.name),
            "runs": [
                {"run": run, "steps": list(_steps_of(known, lambda media, run=run: source(run, media)))}
                for run, known in sorted(panel.steps.items())
            ],
        }
        for number, panel in enumerate(shown.panels)
    ]


def _steps_of(
    known: Mapping[int, Sequence[Media]], source: Callable[[Media], dict[str, Any] | None]
) -> Iterator[dict[str, Any]]:
    for step in sorted(known):
        items = [
            {"kind": media.kind, "caption": clean(media.caption), **(source(media) or {"missing": True})}
            for media in sorted(known[step], key=lambda each: each.index)
        ]
        yield {"step": step, "epoch": known[step][0].epoch, "items": items}


def embedded_media(logged: LoggedMedia, media: Media) -> dict[str, Any] | None:
    """Return a medium as a part of a page: its content, or the address of data; None if its file is missing."""
    if ENDINGS[media.kind] == "json":
        content = logged.content(media)
        return None if content is None else {"content": shown_content(content)}
    try:
        data = base64.b64encode(logged.file(media)).decode()
    except OSError:
        return None
    return {"address": f"data:{TYPES[ENDINGS[media.kind]]};base64,{data}"}


def file_shown(folder: str | os.PathLike[str], name: str, kind: str) -> tuple[bytes, str]:
    """Return a file of the media of a run, and its type. Raises OSError if there is none, or it is of another kind."""
    if not is_file_name(name, kind):
        raise FileNotFoundError(errno.ENOENT, "it is not the name of a file of media")
    media = Media("", 0, 0.0, cast(MediaKind, kind), {}, file=name)
    place = Folder(folder, MEDIA)
    if ENDINGS[kind] != "json":
        return file_of(place, media), TYPES[ENDINGS[kind]]
    content = content_of(place, media)
    if content is None:
        raise FileNotFoundError(errno.ENOENT, "it is missing, or damaged")
    return json.dumps(shown_content(content), allow_nan=False).encode(), "application/json"


def shown_content(value: Any) -> Any:
    """Return the content of a medium without secrets, and with control characters as escapes."""
    if isinstance(value, str):
        return str(printable_lines(redact(value)))
    if isinstance(value, Mapping):
        return {name: shown_content(each) for name, each in value.items()}
    return list(map(shown_content, value)) if isinstance(value, list) else value
