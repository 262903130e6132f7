"""What happened in a run: its starts, restarts, logs and saves, put together from the notes of its journal in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from attrs import define, field, frozen

from hexloop.app.pages.information import RecordedInformation, information_in
from hexloop.app.series import MOST_STEPS, Series
from hexloop.domain.checkpoints.manifest import step_of
from hexloop.domain.journal_index import LOSS_OF_STEP, NOT_FINITE, POSITIONS, SAMPLES, Block
from hexloop.domain.state import LONGEST_TIME, Cause

MOST_SERIES = 300
"""How many names of logged values are kept."""

MOST_EVENTS = 2_000
"""How many sessions and how many saves are kept: the first half of them, and the last."""

LONGEST_TEXT = 500
"""Characters of a name or a reason that are kept."""

MOST_GROUPS, MOST_PATTERNS = 500, 20
"""How many parameter groups are kept, and how many patterns of each."""

MOST_INDICES = 8
"""How many samples of a step whose loss was not usable are named."""

WHAT = {"loss": "the loss", "gradient norm": "the gradient norm", "spike": "a loss spike"}

DONE = {
    "warn": "trained on; later ones are counted in the logs",
    "stop": "the run stopped",
    "skip": "left out",
    "rollback": "left out",
}


class RunEnding(Enum):
    """How a session of a run ended. A lost one did not report its end, or has not ended yet."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


@define
class RecordedSession:
    """A process's part of a run, from a start to an end. Times are in seconds since the epoch, None if unknown.

    first, last: the step it started or resumed at, and the last one that it reported. seen: when it reported last.
    repeated: how many steps it repeated that an earlier session had reported.
    """

    began: float | None
    first: int
    last: int
    seen: float | None
    outcome: RunEnding = RunEnding.LOST
    reasons: tuple[str, ...] = ()
    repeated: int = 0

    @property
    def seconds(self) -> float | None:
        """How long it lasted, until it ended or reported last."""
        return None if self.began is None or self.seen is None else max(self.seen - self.began, 0.0)


@define
class Save:
    """What a checkpoint cost. phases: when each phase occurred, in seconds since the epoch. size: in bytes.

    error: why it failed.
    """

    checkpoint: str
    phases: dict[str, float] = field(factory=dict)
    size: int | None = None
    error: str | None = None

    @property
    def waited(self) -> float | None:
        """For how many seconds training waited: until the snapshot was taken, or else until the end."""
        return self._between("began", "taken" if "taken" in self.phases else "published")

    @property
    def total(self) -> float | None:
        """After how many seconds the checkpoint was durable."""
        return self._between("began", "published")

    def _between(self, one: str, other: str) -> float | None:
        if one not in self.phases or other not in self.phases:
            return None
        return max(self.phases[other] - self.phases[one], 0.0)


@define
class CommandRecord:
    """What became of a command of the board. by: the user who gave it. detail: a step, a checkpoint or a reason."""

    sequence: int
    action: str
    by: str
    outcome: str
    time: float | None
    detail: str = ""


@frozen
class IrregularStep:
    """A step whose loss or gradient norm was not finite, or a loss spike.

    back_to: the step that the run continued from, if it left the samples out.
    """

    step: int
    what: str
    value: str
    samples: str
    done: str
    back_to: int | None


@frozen
class Profile:
    """Steps that were recorded by a profiler. trace, table: the files, in the folder of the run."""

    first: int
    last: int
    trace: str
    table: str


@define
class Bounded:
    """A list whose middle is dropped when it grows too long. dropped: how many entries were."""

    entries: list[Any] = field(factory=list)
    dropped: int = 0

    def append(self, entry: Any) -> None:
        """Add an entry at the end."""
        self.entries.append(entry)
        if len(self.entries) > MOST_EVENTS:
            del self.entries[MOST_EVENTS // 2]
            self.dropped += 1


@frozen
class RecordedGroup:
    """A parameter group. rule: its name; None without one. patterns: of the names of its parameters.

    tensors, parameters: how many it has, the latter in values. learning_rate: at its peak.
    """

    rule: str | None
    patterns: str
    optimizer: str
    tensors: int | None
    parameters: int | None
    learning_rate: float | None
    weight_decay: float | None


def groups_in(value: Any) -> list[RecordedGroup]:
    """Return the parameter groups in a note of the journal, the first ones. Facts of other types are left out."""
    return [
        _group_in(each) for each in (value if isinstance(value, list) else [])[:MOST_GROUPS] if isinstance(each, dict)
    ]


def _group_in(group: Mapping[str, Any]) -> RecordedGroup:
    rule, patterns, optimizer = (group.get(name) for name in ("rule", "patterns", "optimizer"))
    listed = [str(each)[:LONGEST_TEXT] for each in (patterns if isinstance(patterns, list) else [])[:MOST_PATTERNS]]
    return RecordedGroup(
        rule[:LONGEST_TEXT] if isinstance(rule, str) else None,
        ", ".join(listed),
        optimizer[:LONGEST_TEXT] if isinstance(optimizer, str) else "",
        step_in(group.get("tensors")),
        step_in(group.get("parameters")),
        number_of(group.get("learning_rate")),
        number_of(group.get("weight_decay")),
    )


@define
class RunHistory:
    """One run. name: its identifier in checkpoints and journals. settings, command: those of the last start.

    defaults: of the settings that differ from them; None if the journal does not have them. groups: the parameter
    groups of the last start.

    series: the curves by name. times: at which time, in seconds since the epoch, a step was logged. positions: how far
    the run was by other counts at the logged steps, by the names `POSITIONS`. commands: of the board. irregular: steps
    whose loss was not usable. paused_at: the step at which the run is paused now. continued_at: the step at which it
    started, resumed or paused last, and when it continued, if that is known. time_spent: what the time went into, in
    seconds; empty if that was not measured. profiles: the steps that were recorded.
    information: on the machine, the code and the sizes of the last start.
    """

    name: str
    settings: Mapping[str, Any] = field(factory=dict)
    defaults: Mapping[str, Any] | None = None
    groups: Sequence[RecordedGroup] = ()
    command: str = ""
    sessions: Bounded = field(factory=Bounded)
    saves: Bounded = field(factory=Bounded)
    series: dict[str, Series] = field(factory=dict)
    times: Series = field(factory=Series)
    positions: dict[str, Series] = field(factory=dict)
    commands: Bounded = field(factory=Bounded)
    irregular: Bounded = field(factory=Bounded)
    profiles: Bounded = field(factory=Bounded)
    time_spent: Mapping[Cause, float] = field(factory=dict)
    information: RecordedInformation = field(factory=RecordedInformation)
    last_step: int = 0
    paused_at: int | None = None
    continued_at: tuple[int, float | None] = (0, None)
    total_steps: int | None = None
    left_out: set[str] = field(factory=set)

    @property
    def seen(self) -> float | None:
        """When the run reported last, in seconds since the epoch."""
        return next((each.seen for each in reversed(self.sessions.entries) if each.seen is not None), None)

    @property
    def restarts(self) -> int:
        """How often the run was started again, without the times at which a finished run had nothing left to train."""
        sessions: list[RecordedSession] = self.sessions.entries
        idle = sum(
            before.outcome is each.outcome is RunEnding.FINISHED and each.first == each.last == before.last
            for before, each in zip(sessions, sessions[1:], strict=False)
        )
        return max(len(sessions) - 1, 0) + self.sessions.dropped - idle

    def take(self, note: Mapping[str, Any]) -> None:
        """Add a note of the journal. Facts of an unexpected type are ignored."""
        time, step = number_of(note.get("time")), step_in(note.get("step"))
        kind = note.get("kind")
        if kind == "began":
            self._begin(note, step or 0, time)
            return
        session = self._session(time)
        if time is not None:
            session.seen = time
        if step is not None and kind in ("logged", "step", "ended"):
            session.last = self.last_step = step
        if kind in ("logged", "step", "ended"):
            self.paused_at = None
        if kind == "logged" and step is not None:
            self._log(step, time, note.get("values"))
            if (samples := step_in(note.get("samples"))) is not None:
                self.positions.setdefault(SAMPLES, Series()).add(step, samples)
        elif kind == "losses":
            self._losses(note)
        elif kind == "save":
            self._save(note, time)
        elif kind == "paused":
            session.last = self.last_step = self.last_step if step is None else step
            self.paused_at = self.last_step
            self.continued_at = self.last_step, None
        elif kind == "command":
            self._command(note, time)
        elif kind == "goodput":
            self.time_spent = times_in(note.get("seconds")) or self.time_spent
        elif kind == "information":
            self.information = information_in(note)
        elif kind == "profile" and (profile := profile_in(note)) is not None:
            self.profiles.append(profile)
        elif kind == "irregular" and (found := irregular_step(note)) is not None:
            self.irregular.append(found)
            if found.back_to is not None:  # what was reported after that step is void
                session.last = self.last_step = min(found.back_to, self.last_step)
                self._forget_after(found.back_to)
        elif kind == "ended":
            _end(session, note)

    def take_block(self, block: Block) -> None:
        """Add what consecutive notes of steps, losses and logs add up to, as `take` does with each of them."""
        session = self._session(block.first)
        session.seen, session.last, self.last_step, self.paused_at = block.last, block.step, block.step, None
        self.times.replace_from(*map(np.array, block.times))
        for name, column in block.curves.items():
            if name in POSITIONS:
                self.positions.setdefault(name, Series()).replace_from(*map(np.array, column))
                continue
            if name not in self.series and len(self.series) >= MOST_SERIES:
                if len(self.left_out) < MOST_SERIES:
                    self.left_out.add(name)
                continue
            self.series.setdefault(name, Series()).replace_from(*map(np.array, column))

    def add_logged(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values that were logged at a step, at an unknown time."""
        self.last_step = max(self.last_step, step)
        self._log(step, None, values)

    def add_earlier(self, entries: Iterable[Mapping[str, Any]], until: int) -> None:
        """Add what was logged up to the step `until`, before the notes that were added begin."""
        earlier = RunHistory(self.name)
        for entry in entries:
            step = step_in(entry.get("step"))
            if step is not None and step <= until:
                earlier.add_logged(step, entry)
        self.series = _joined(earlier.series, self.series)
        self.positions = _joined(earlier.positions, self.positions)

    def _begin(self, note: Mapping[str, Any], step: int, time: float | None) -> None:
        """Start a session. What an earlier one reported after its step is void."""
        self.paused_at = None
        self.continued_at = step, time
        self._forget_after(step)
        repeated = max(self.last_step - step, 0) if self.sessions.entries else 0
        self.sessions.append(RecordedSession(time, step, step, time, repeated=repeated))
        self.last_step = step
        settings = note.get("settings")
        self.settings = settings if isinstance(settings, Mapping) else self.settings
        if not self.settings.get("log_goodput"):  # an earlier session measured a part of the run only
            self.time_spent = {}
        defaults = note.get("defaults")
        self.defaults = defaults if isinstance(defaults, Mapping) else None
        self.groups = groups_in(note.get("groups"))
        command = note.get("command")
        self.command = command[:LONGEST_TEXT] if isinstance(command, str) else self.command
        self.total_steps = step_in(note.get("total_steps")) or self.total_steps

    def _forget_after(self, step: int) -> None:
        for each in (self.times, *self.positions.values(), *self.series.values()):
            each.forget_after(step)

    def _session(self, time: float | None) -> RecordedSession:
        if not self.sessions.entries:  # the start of the journal is missing
            self.sessions.append(RecordedSession(None, 0, 0, time))
        session: RecordedSession = self.sessions.entries[-1]
        return session

    def _log(self, step: int, time: float | None, values: object) -> None:
        if time is not None:
            self.times.add(step, time)
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if type(value) is float:
                number: float | None = value
            else:
                number = NOT_FINITE.get(value) if isinstance(value, str) else number_of(value)
            if number is None or name == "step":
                continue
            if name in POSITIONS:
                self.positions.setdefault(name, Series()).add(step, number)
            elif (series := self.series.get(name)) is not None:
                series.add(step, number)
            else:
                self._curve(name, step, number)

    def _losses(self, note: Mapping[str, Any]) -> None:
        first, losses = step_in(note.get("first")), note.get("losses")
        for number, loss in enumerate(losses if isinstance(losses, list) and first is not None else ()):
            value = NOT_FINITE.get(loss) if isinstance(loss, str) else number_of(loss)
            if value is not None:
                self._curve(LOSS_OF_STEP, (first or 0) + number, value)

    def _curve(self, name: object, step: int, value: float) -> None:
        text = str(name)[:LONGEST_TEXT]
        if text not in self.series:
            if len(self.series) >= MOST_SERIES:
                if len(self.left_out) < MOST_SERIES:
                    self.left_out.add(text)
                return
            self.series[text] = Series()
        self.series[text].add(step, value)

    def _save(self, note: Mapping[str, Any], time: float | None) -> None:
        phase, checkpoint = str(note.get("phase"))[:LONGEST_TEXT], str(note.get("checkpoint"))[:LONGEST_TEXT]
        if phase == "failed":
            step = step_in(note.get("step"))
            save = self._last_save(f"checkpoint-{step}") or self._new_save(f"checkpoint-{step}")
            save.error = str(note.get("error"))[:LONGEST_TEXT]
            return
        if step_of(checkpoint) is None or phase not in PHASES:
            return
        found = None if phase == "began" else self._last_save(checkpoint)
        save = found or self._new_save(checkpoint)
        if time is not None:
            save.phases[phase] = time
        if phase == "written":
            save.size = step_in(note.get("bytes"))

    def _command(self, note: Mapping[str, Any], time: float | None) -> None:
        sequence, outcome = step_in(note.get("sequence")), str(note.get("outcome"))[:LONGEST_TEXT]
        if sequence is None:
            return
        action, by = (str(note.get(name) or "")[:LONGEST_TEXT] for name in ("action", "by"))
        step, known = step_in(note.get("step")), note.get("checkpoint") or note.get("reason")
        detail = str(known)[:LONGEST_TEXT] if known else "" if step is None else f"at step {step:,}"
        last: list[CommandRecord] = self.commands.entries[-8:]
        found = next((each for each in reversed(last) if each.sequence == sequence and each.action == action), None)
        if found is None or outcome in ("accepted", "refused"):
            self.commands.append(CommandRecord(sequence, action, by, outcome, time, detail))
        else:
            found.outcome, found.detail = outcome, detail
        if action == "resume" and outcome == "accepted":
            self.paused_at = None
            self.continued_at = self.last_step, time
        elif action == "pause" and outcome == "done":
            self.paused_at = self.last_step

    def _last_save(self, checkpoint: str) -> Save | None:
        last: list[Save] = self.saves.entries[-8:]
        return next((each for each in reversed(last) if each.checkpoint == checkpoint), None)

    def _new_save(self, checkpoint: str) -> Save:
        self.saves.append(save := Save(checkpoint))
        return save


def _joined(earlier: dict[str, Series], later: Mapping[str, Series]) -> dict[str, Series]:
    """Add later series to earlier ones of the same names, which end where these start."""
    for name, series in later.items():
        found = earlier.setdefault(name, Series())
        if series.steps or series.gaps:
            found.forget_after(min([*series.steps[:1], *series.gaps[:1]]) - 1)
        found.extend(series)
    return earlier


PHASES = ("began", "taken", "first_byte", "written", "published")
"""The phases of a save that are timed."""


def number_of(value: object) -> float | None:
    """Return a number as a float; None for anything else, and for a number that is too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def step_in(value: object) -> int | None:
    """Return a count such as a step; None for anything that is not one."""
    return value if type(value) is int and 0 <= value < MOST_STEPS else None


def times_in(value: object) -> dict[Cause, float]:
    """Return what is known of the seconds by cause in a note; empty if a cause has no sound time."""
    given = value if isinstance(value, Mapping) else {}
    times = {cause: number_of(given.get(cause.value, 0.0)) for cause in Cause}
    sound = {cause: time for cause, time in times.items() if time is not None and 0 <= time < LONGEST_TIME}
    return sound if len(sound) == len(times) and any(sound.values()) else {}


def profile_in(note: Mapping[str, Any]) -> Profile | None:
    """Return the profile in a note; None if it is not sound."""
    first, last = step_in(note.get("first")), step_in(note.get("last"))
    trace, table = (str(note.get(name))[:LONGEST_TEXT] for name in ("trace", "table"))
    return None if first is None or last is None else Profile(first, last, trace, table)


def irregular_step(note: Mapping[str, Any]) -> IrregularStep | None:
    """Return what a note says about such a step; None if it is not sound."""
    step, first, samples, epoch = (step_in(note.get(name)) for name in ("step", "first_sample", "samples", "epoch"))
    what, done = WHAT.get(str(note.get("what"))), DONE.get(str(note.get("reaction")))
    if step is None or first is None or samples is None or epoch is None or what is None or done is None:
        return None
    value, indices = note.get("value"), note.get("indices")
    named = f"{first:,} to {first + max(samples, 1) - 1:,} of epoch {epoch:,}"
    if isinstance(indices, list) and indices and all(step_in(each) is not None for each in indices[:MOST_INDICES]):
        more = ", ..." if len(indices) > MOST_INDICES else ""
        named += f" (in the dataset {', '.join(map(str, indices[:MOST_INDICES]))}{more})"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)[:20]
    return IrregularStep(step, what, shown, named, done, step_in(note.get("back_to")))


def _end(session: RecordedSession, note: Mapping[str, Any]) -> None:
    reasons = note.get("reasons")
    session.reasons = tuple(str(each)[:LONGEST_TEXT] for each in reasons[:10]) if isinstance(reasons, list) else ()
    if "stopped" not in note:  # an error ended it
        session.outcome = RunEnding.FAILED
    else:
        session.outcome = RunEnding.STOPPED if note["stopped"] else RunEnding.FINISHED
