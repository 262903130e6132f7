"""What is recorded of a run: values for loggers, what loggers do not have yet, and notes of what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from attrs import field, frozen

Value: TypeAlias = "float | int | str | bool | None"

Fact: TypeAlias = "str | int | float | bool | Sequence[Fact] | Mapping[str, Fact] | None"
"""A JSON value."""

Entry: TypeAlias = Mapping[str, Fact]
"""A JSON object."""


@frozen
class RunInformation:
    """What a logger receives at the start: what the run is, and where it continues.

    Args:
        name: what to call it.
        configuration: the arguments, without secrets.
        folder: where the run writes.
        total_steps: optimizer steps of the whole run; None if not known.
        step: optimizer steps done, above 0 if the run resumes.
        run: identifies the run, also after it resumed in another process.
        tracked_as: what this logger returned when the run started first; None for a new run.
        chosen_name: the name that the user chose, if any.
        model_configuration: the model's own configuration.
        adapter_configuration: the configuration of the model's PEFT adapter.
        parameters: how many numbers the model has; None if not known.
        trainable_parameters: how many of them are trained; None if not known.
        trial: the name of the trial, if the run is one of a search.
        trial_parameters: the values of the trial, by name.
        group: the name under which the trials of the search are one group; None without a search.
        model: the live model on the process that trains it; None where it is not at hand, as when a queue is worked off
            later.
    """

    name: str
    configuration: Mapping[str, object] = field(factory=dict)
    folder: str | None = None
    total_steps: int | None = None
    step: int = 0
    run: str = ""
    tracked_as: str | None = None
    chosen_name: str | None = None
    model_configuration: Mapping[str, object] = field(factory=dict)
    adapter_configuration: Mapping[str, object] = field(factory=dict)
    parameters: int | None = None
    trainable_parameters: int | None = None
    trial: str | None = None
    trial_parameters: Mapping[str, object] = field(factory=dict)
    group: str | None = None
    model: object | None = field(default=None, eq=False, repr=False)


@frozen
class Record:
    """The values of one log. `step` is the optimizer step; `epoch` may be fractional.

    Args:
        step: the optimizer step.
        epoch: how often the data have been trained on, a fraction within an epoch.
        values: the logged values by name.
    """

    step: int
    epoch: float
    values: Mapping[str, Value]


@frozen
class SavedModel:
    """A folder with a model that a logger may upload; it does not change while the logger has it.

    Args:
        folder: the folder of the model.
        name: of the checkpoint, such as "checkpoint-500", or "model" for the model at the end of the run.
        step: the optimizer step.
        epoch: how often the data have been trained on.
        final: whether it is the model at the end of the run.
        best: whether it is the best one by now.
        metrics: of the newest evaluation, and at the end also those of the training.
    """

    folder: str
    name: str
    step: int
    epoch: float
    final: bool = False
    best: bool = False
    metrics: Mapping[str, Value] = field(factory=dict)


@frozen
class Outcome:
    """How a run ended.

    Args:
        kind: "finished", "failed", "stopped" or "preempted".
        problem: the error of a failed one, or the reason of one that was stopped; without secrets.
    """

    kind: Literal["finished", "failed", "stopped", "preempted"] = "finished"
    problem: str = ""


FINISHED = Outcome()


class Logger(Protocol):
    """A receiver of metrics: a file, the screen, or a service that keeps the history of runs (a tracker).

    It may fail: the run warns once and continues without it.

    Calls come one at a time and in order, from a thread of hexloop's that is not the user's, so a slow logger costs the
    run nothing. If a logger has the attribute `in_loop` and it is true, the loop calls it itself; this is for loggers
    that write to a local file or to the screen.
    """

    def start(self, run: RunInformation) -> str | None:
        """A run starts, or resumes at `run.step`. Return what identifies it for this logger; None if nothing does.

        It is a part of the run's checkpoints, and is `run.tracked_as` when the run resumes.

        Args:
            run: describes the run.
        """

    def write(self, record: Record) -> None:
        """Values were logged. The same record may come twice, if a process died at the wrong moment.

        Args:
            record: the values with their step.
        """

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """The run has ended, with or without an error.

        Args:
            outcome: how the run ended.
        """


class ModelLogger(Logger, Protocol):
    """A logger that also takes models."""

    @property
    def models(self) -> Literal["none", "final", "checkpoints"]:
        """Which models it takes: none, the one at the end of the run, or that one and every checkpoint."""

    def save(self, model: SavedModel) -> None:
        """A model was saved. Return once it is uploaded or copied.

        Args:
            model: the folder with the model.
        """


class ThreadLogger(Logger, Protocol):
    """A logger whose library has a current run for each thread; the user's functions call the library too."""

    def enter_thread(self) -> None:
        """Make the run the current one of the calling thread. Called in the user's thread after `start` returned."""

    def leave_thread(self) -> None:
        """Undo it. Called in the user's thread before `finish`."""


class LinkedLogger(Logger, Protocol):
    """A logger that shows the run on a page that others can open. Model cards link it."""

    @property
    def page(self) -> str | None:
        """The URL of the page; None before it exists."""

    @property
    def card_tags(self) -> tuple[str, ...]:
        """The tags of model cards that say where the run is tracked; empty before the page exists."""


MediaKind: TypeAlias = Literal["text", "table", "image", "histogram", "audio"]


@frozen
class Media:
    """Something that was logged at a step and is not a number.

    | kind | content |
    |---|---|
    | text | `text` |
    | table | `columns`, the names, and `rows`, lists of as many plain values |
    | image | `width`, `height` in pixels |
    | histogram | `edges` in ascending order, and `counts` between them, one fewer |
    | audio | `rate` in samples a second, `seconds`, `channels` |

    Args:
        name: the name that it was logged under.
        step: the optimizer steps done by then.
        epoch: the epochs done by then.
        kind: "text", "table", "image", "histogram" or "audio".
        content: what it is, as plain values; see the table.
        index: its place among those that were logged together under the name.
        caption: a line of text under it.
        file: the PNG of an image, the WAV of audio, and for the other kinds a JSON document of their content. For a
            logger it is a path on this machine.
        size: of the file, in bytes.
    """

    name: str
    step: int
    epoch: float
    kind: MediaKind
    content: Mapping[str, Fact]
    index: int = 0
    caption: str = ""
    file: str = ""
    size: int = 0


class MediaLogger(Logger, Protocol):
    """A logger that also takes media."""

    @property
    def media(self) -> frozenset[MediaKind]:
        """The kinds that it takes. Others are not passed to it, which is reported once for each kind."""

    def write_media(self, media: Media) -> None:
        """A medium of such a kind was logged. Its file may be removed once this returns.

        Args:
            media: the medium.
        """


class Spool(Protocol):
    """What a run has for its loggers and they do not have yet. Thread-safe.

    It is a list of numbered entries, in order, with a position in it for each receiver.

    Entries, positions and facts outlive the process, unless the spool is in memory. Only what is asked of a spool here
    is known to it: what the entries mean is the domain's.
    """

    def append(self, number: int, entry: Entry) -> bool:
        """Add an entry whose number is above all others; return False if there is no room for it.

        Once this returns True, the death of the process does not lose the entry.

        Args:
            number: above all others.
            entry: what is kept, as JSON can hold it.
        """

    def read(self, after: int, most: int) -> Sequence[tuple[int, Entry]]:
        """Return the first entries with numbers above `after`, at most `most`.

        Args:
            after: the number of the last entry that is not wanted.
            most: the most entries.
        """

    def keep(self, wanted: Callable[[Entry], bool]) -> int:
        """Drop all entries that are not `wanted`; return the largest number that was used, 0 if there is none.

        Args:
            wanted: returns whether an entry is kept.
        """

    def position(self, receiver: str) -> int:
        """Return the number of the last entry that a receiver has; 0 if it has none.

        Args:
            receiver: the name of a logger.
        """

    def move(self, receiver: str, number: int) -> None:
        """Store that a receiver has all entries up to a number. Entries that all receivers have may be dropped.

        Args:
            receiver: the name of a logger.
            number: that of the last entry that it has.
        """

    def facts(self, receiver: str) -> Entry | None:
        """Return what `describe` stored; None if nothing.

        Args:
            receiver: the name of a logger.
        """

    def describe(self, receiver: str, facts: Entry) -> None:
        """Store what another process needs to know about a receiver. A described receiver keeps entries it lacks.

        Args:
            receiver: the name of a logger.
            facts: what is stored, as JSON can hold it.
        """

    def receivers(self) -> Sequence[str]:
        """Return the receivers that are described."""

    def hold(self, name: str, files: Iterable[tuple[str, str]]) -> str:
        """Keep copies or hard links of files, from path in the folder to path on this machine; return its name.

        Args:
            name: the beginning of the name of the folder.
            files: from path in the folder to path on this machine.

        Raises:
            OSError: if there is no room, or the spool is in memory.
        """

    def location(self, folder: str) -> str | None:
        """Return the path on this machine of a folder that `hold` made; None if there is none.

        Args:
            folder: what `hold` returned.
        """

    def release(self, folder: str) -> None:
        """Remove a folder that `hold` made; one that is not there is ignored.

        Args:
            folder: what `hold` returned.
        """

    def close(self, remove: bool) -> None:
        """Let other processes use it.

        Args:
            remove: with everything in it.
        """


class Journal(Protocol):
    """An append-only list of notes on what happens in a run. It survives the process, however that ends.

    A journal only takes notes: the kind of an event, with plain facts. What is noted, and how two journals are
    compared, is defined by the domain (`hexloop.domain.journal`).
    """

    def note(self, kind: str, **facts: Fact) -> None:
        """Append a note; once this returns, the death of the process does not lose it.

        Thread-safe. No fact may be named "kind".

        Args:
            kind: the kind of the note.
            **facts: values by name, as JSON can hold them; none is named "kind".

        Raises:
            OSError: if the note cannot be stored.
        """

    def close(self) -> None:
        """Close the journal. A later note reopens it and is appended."""
