"""Division of a stream among loader workers, if it does not divide itself.

torch gives each worker a copy of an iterable dataset, which is expected to call `get_worker_info` and to yield only a
part. One that does not is read as often as there are workers. Each worker therefore watches whether the dataset asks,
until its first row, and compares that row with those of the other workers. If no dataset asks and all read the same
row, each worker reads all rows and keeps whole batches in turn: the batches are those of a single reader. If the rows
differ, the dataset may divide itself in another way, such as by a queue, so that nothing is left out.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from hexloop.adapters.batches.torch.structure import batch_fingerprint, is_comparable
from hexloop.domain.errors import DataError

ASKED, NO_ROW, UNLIKE, FIRST_FINGERPRINT = range(1, 5)
"""What a worker notes: its dataset asked for the worker; it has no row; its first row cannot be compared with those of
others, as after a resume from a state. Larger numbers are the fingerprint of its first row."""

PAUSE = 0.002
"""Seconds between two looks at the notes of the other workers."""


class WatchedInfo(torch_worker.WorkerInfo):
    """Information about a worker, which notices whether a dataset reads its id or the number of workers."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers") and Watch.current is not None:
            Watch.current.notice()
        return super().__getattribute__(name)


class Watch:
    """Watches whether a dataset asks for its worker in this process.

    asked: whether it has. on_ask: called the first time, before the dataset gets the answer.
    """

    current: Watch | None = None

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self.asked, self._on_ask = False, on_ask
        info: Any = get_worker_info()
        if not isinstance(info, WatchedInfo):
            names = getattr(info, "__dataclass_fields__", None) or [name for name in vars(info) if name[0] != "_"]
            torch_worker._worker_info = WatchedInfo(**{name: getattr(info, name) for name in names})

    def notice(self) -> None:
        """Note that the dataset asks."""
        if not self.asked:
            self.asked = True
            self._on_ask()

    def __enter__(self) -> None:
        Watch.current = self

    def __exit__(self, *_: object) -> None:
        Watch.current = None


class Division:
    """The notes of the workers of one pass, in shared memory."""

    def __init__(self, workers: int) -> None:
        self.notes: Tensor = torch.zeros(workers, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def end(self, worker: int) -> None:
        """Note that a worker has ended, if it has noted nothing, so that no other waits for it."""
        if not self.notes[worker]:
            self.notes[worker] = NO_ROW

    def agree(self, worker: int, note: int, waits: bool = True) -> bool:
        """Note what this worker found; return whether the rows are divided, as soon as the notes tell.

        waits: the rows may be divided; otherwise no other worker is waited for.
        """
        self.notes[worker] = note
        main = multiprocessing.parent_process()
        while waits and (main is None or main.is_alive()):
            notes = self.notes.tolist()
            if ASKED in notes:
                return False
            if all(notes):
                return self.is_by_position()
            time.sleep(PAUSE)
        return False

    def is_by_position(self) -> bool:
        """Return whether all workers read the same first row."""
        first, *others = self.notes.tolist()
        return first >= FIRST_FINGERPRINT and all(note == first for note in others)

    @property
    def is_settled(self) -> bool:
        """Whether every worker has noted what it found, or one that the dataset divides itself."""
        notes = self.notes.tolist()
        return ASKED in notes or all(notes)

    def problem(self, dataset: object) -> str | None:
        """Return what to report about data that do not divide themselves; None if they do, or nothing is known yet."""
        notes = self.notes.tolist()
        if ASKED in notes or not all(notes) or len(notes) < 2:
            return None
        data, workers = type(dataset).__name__, len(notes)
        remedy = (
            "Let __iter__ call torch.utils.data.get_worker_info() and yield only the part of its worker, or set "
            "dataloader_num_workers=1."
        )
        if self.is_by_position():
            return (
                f"{data} does not divide its rows among the {workers} loader workers, so each worker reads all rows "
                f"and keeps one batch in {workers}: each row is used once, but reading is as slow as with one worker. "
                f"{remedy}"
            )
        if all(note == NO_ROW for note in notes):
            return None
        return (
            f"{data} does not ask which of the {workers} loader workers reads it. Each worker's rows are all used, so "
            f"a row that several workers read is used several times. {remedy}"
        )


def note_of(first: Any) -> int:
    """Return the note about the first row of a dataset that has not asked for its worker."""
    fingerprint = batch_fingerprint(first) if is_comparable(first) else None
    return UNLIKE if fingerprint is None else FIRST_FINGERPRINT | int(fingerprint, 16) >> 2


def late_question() -> DataError:
    """Return the error about a dataset that asks for its worker when its rows are divided already."""
    return DataError(
        "The dataset asks for its worker only after its first row, when its rows are divided among the workers: rows "
        "would be lost. Let it call get_worker_info at the start of __iter__."
    )


_reported: set[str] = set()


def report_once(problem: str | None) -> None:
    """Log a problem, once in this process."""
    if problem is not None and problem not in _reported:
        _reported.add(problem)
        logging.getLogger("hexloop").warning(problem)
