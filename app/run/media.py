"""The media of a live run: what `log_media` does with a value, and where it is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from hexloop.app.assembly.media import BINS, Options, prepared
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.trackers import media_folder
from hexloop.domain.media import LONGEST_CAPTION, LONGEST_NAME
from hexloop.domain.media_log import MediaLog, PendingMedia
from hexloop.domain.run import Run
from hexloop.ports.logger import Media

LOGGER = logging.getLogger("hexloop.loggers")

MEGABYTE = 1_000_000


@define(eq=False)
class RunMedia:
    """Takes the media of a live run. Nothing that a user passes stops the run: what cannot be logged is reported once.

    log: writes them; None on processes that do not write.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    log: MediaLog | None
    _reported: set[str] = field(factory=set, init=False)

    def take(
        self,
        name: str,
        value: Any,
        kind: str | None = None,
        *,
        caption: str | Sequence[str] = "",
        columns: Sequence[str] | None = None,
        rate: int | None = None,
        bins: int = BINS,
    ) -> None:
        """Take a value as it is now, and keep it in the background; see `Trainer.log_media`."""
        if self.log is None:
            return
        shown = _line(str(name), LONGEST_NAME) or "media"
        try:
            options = Options(bins, rate, columns)
            taken = prepared(value, kind, options, self.parts.adapters.framework.array_later)
        except Exception as error:  # also one of a class of the user's
            self._refuse(shown, error)
            return
        captions = [caption] * len(taken) if isinstance(caption, str) else [*caption, *[""] * len(taken)]
        step, epoch = self.run.state.step, float(self.parts.state.epoch or 0.0)
        for index, (each, text) in enumerate(zip(taken, captions, strict=False)):
            whole = "; ".join(filter(None, [str(text), each.note]))
            line = _line(whole, LONGEST_CAPTION)
            self.log.put(PendingMedia(shown, step, epoch, each.kind, each.encode, index, line, each.size))

    def finish(self, seconds: float) -> None:
        """Write what is waiting, for at most this time."""
        if self.log is not None:
            self.log.close(seconds)

    def _refuse(self, name: str, error: Exception) -> None:
        if name not in self._reported:
            self._reported.add(name)
            LOGGER.warning("The media %r cannot be logged: %s. The run continues without.", name, error)


def run_media(parts: TrainerParts, run: Run[Any, Any], pass_on: Callable[[Media], None]) -> RunMedia:
    """Return what takes the media of a run that is about to start or resume. pass_on: gives one to the loggers."""
    adapters = parts.adapters
    if not adapters.mesh.writes:
        return RunMedia(parts, run, None)
    log = MediaLog(
        media_folder(parts.folder),
        run.state.run,
        run.state.step,
        int(parts.args.media_limit * MEGABYTE),
        adapters.clock,
        pass_on,
        LOGGER.warning,
    )
    log.start()
    return RunMedia(parts, run, log)


def _line(text: str, longest: int) -> str:
    """Return a text as one line without control characters."""
    plain = text.encode("utf-8", "replace").decode()
    return "".join(" " if letter < " " or letter == "\x7f" else letter for letter in plain)[:longest].strip()
