"""The search itself: rank 0 asks for trials and records them; all ranks run each trial and agree on how it ended."""

from __future__ import annotations

import gc
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

from attrs import define, evolve, field, frozen

from hexloop.app.assembly.searches import ChosenBackend, SearchOptions
from hexloop.app.search.checkpoints import TrialCheckpoints
from hexloop.app.search.parameters import plain_parameters
from hexloop.app.search.results import BestRun
from hexloop.domain.errors import (
    CheckpointError,
    CollectiveError,
    ConfigurationError,
    MissingCheckpointError,
    RunStateError,
)
from hexloop.domain.folders import Folder
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.redaction import redact
from hexloop.domain.search.records import (
    RecordedTrial,
    SearchDefinition,
    SearchLog,
    SearchRecord,
    is_trial_name,
    read_search,
)
from hexloop.domain.search.selection import best_trials
from hexloop.domain.search.trial import ENDS_THE_SEARCH, Aim, LiveTrial, SharedTrial, trial_on_rank0
from hexloop.domain.wording import listed, shown
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.device import Device
from hexloop.ports.process import Clock
from hexloop.ports.search import Proposal, Search, TrialState

LOGGER = logging.getLogger("hexloop")

AUTO = "auto"

GRACE = 30.0
"""Seconds that a rank whose trial failed waits for the others to fail as well, before it ends the search."""


RunTrial = Callable[[LiveTrial, "str | None"], bool]
"""Runs a trial, from a checkpoint if one is given; returns whether it was run to its end, False if it was stopped."""


@frozen
class SearchCall:
    """What `hyperparameter_search` was asked for.

    space: the user's function. compute_objective: returns the objective of metrics. declared: the space where it is
    data. trials: how many, None for all. name: returns the name of a trial; None for `run-<identifier>`. aim: what
    trials are compared by. seed: of the proposals. resume: True, False or "auto". timeout: seconds after which no
    further trial starts. catch: the errors after which a trial counts as failed; others end the search. collects:
    whether to collect garbage after each trial. keep: of how many of the best trials the checkpoints are kept; None
    for all. options: for the backend. metrics: the names of the objectives, where they are metrics.
    """

    backend: ChosenBackend
    space: Callable[[Any], Any]
    compute_objective: Callable[[dict[str, float]], Any]
    declared: Any
    trials: int | None
    name: Callable[[Any], str] | None
    aim: Aim
    several: bool
    seed: int
    resume: bool | str
    timeout: float | None
    catch: tuple[type[BaseException], ...]
    collects: bool
    keep: int | None
    options: Mapping[str, Any]
    metrics: Sequence[str] | None = None

    @property
    def definition(self) -> SearchDefinition:
        """What is recorded of it."""
        return SearchDefinition(
            backend=self.backend.name,
            directions=list(self.aim.directions),
            trials=self.trials,
            seed=self.seed,
            objective=self.aim.which,
            space=self.declared,
            metrics=None if self.metrics is None else list(self.metrics),
        )


@frozen
class SearchPlace:
    """Where a search is, and what its trials may be.

    folder: where the record is, a local one. location: returns where the folder of a trial is, a path or a URL. group:
    the name of the search for trackers. checkpoints: of the trials. check: raises ConfigurationError for parameters
    that the arguments do not take.
    """

    folder: Folder
    location: Callable[[str], str]
    group: str
    clock: Clock
    checkpoints: TrialCheckpoints
    check: Callable[[Mapping[str, Any]], None]


@frozen
class SearchHost(SearchPlace):
    """The Trainer's side of a search.

    run: runs a trial, from a checkpoint if one is given; returns whether it was run to its end, False if a request
    stopped it. release: frees what a trial left.
    """

    collectives: Collectives
    device: Device
    run: RunTrial
    release: Callable[[], None]


def search(host: SearchHost, call: SearchCall) -> BestRun | list[BestRun]:
    """Run the trials of a search and return the best one, or with several directions those that none other beats.

    In pseudocode::

        read the record of a search that is to be resumed, or start a new one
        while trials are wanted, and there is time:
            rank 0 asks for a trial, and records it; all ranks receive it
            train it from its newest checkpoint; after each evaluation rank 0 asks whether to go on
            agree on how it ended, tell the backend, and record it
        return the best trial

    Collective. Raises ConfigurationError for a space that does not fit the arguments, before the first trial trains;
    RunStateError if no trial was complete; CheckpointError if the record does not fit the search that is resumed.
    """
    own = host.collectives
    shared = own if own.world_size == 1 else own.apart()
    leader = Leader(host, call)
    try:
        run_on_rank0(shared, leader.begin)
        while (described := run_on_rank0(shared, leader.next)) is not None:
            trial = cast("dict[str, Any]", described)
            live = _live(host, call, leader, shared, trial)
            began = host.clock.monotonic()
            if not _run_trial(host, call, shared, live, trial):
                LOGGER.info("The search was stopped in trial %d; resume='auto' continues it.", live.number)
                break
            seconds = host.clock.monotonic() - began
            assert live.state is not None
            state, reason = live.state, live.reason
            run_on_rank0(shared, lambda: leader.end(live.number, state, reason, seconds))  # noqa: B023  # called at once
            del live
            host.release()
            if call.collects:
                gc.collect()
        found = cast("list[dict[str, Any]]", run_on_rank0(shared, leader.result))
    except BaseException as error:
        if not isinstance(error, CollectiveError):
            own.tell_failure(f"{type(error).__name__}: {error}")
        raise
    finally:
        leader.close()
    summary = leader.search.summary if leader.search is not None else None
    best = [BestRun(each["run_id"], each["objective"], each["hyperparameters"], summary) for each in found]
    return best if call.several else best[0]


def _live(
    host: SearchHost, call: SearchCall, leader: Leader, shared: Collectives, described: dict[str, Any]
) -> LiveTrial:
    """Return a trial as this rank runs it."""

    def on_rank0(act: Callable[[], Any]) -> Any:
        return trial_on_rank0(shared, act)

    own = leader.handle
    handle: Any = own
    if shared.world_size > 1:
        drawn = described["drawn"]
        number = described["number"]
        handle = dict(drawn) if described["plain"] else SharedTrial(number, drawn, own, on_rank0)

    def decide(step: int, values: Sequence[float], has_diverged: bool, asks: bool) -> bool:
        return bool(on_rank0(lambda: leader.report(described["number"], step, values, has_diverged, asks)))

    live = LiveTrial(
        number=described["number"],
        identifier=described["identifier"],
        name=described["name"],
        label=described["label"],
        folder=host.location(described["name"]),
        group=host.group,
        run=described["run"],
        parameters=described["parameters"],
        handle=handle,
        aim=call.aim,
        decide=decide,
        reports={int(step): tuple(map(float, values)) for step, values in described["reports"]},
    )
    live.take_up_end(described["pruned_at"], described["diverged_at"])
    return live


def _run_trial(
    host: SearchHost, call: SearchCall, shared: Collectives, live: LiveTrial, described: dict[str, Any]
) -> bool:
    """Run a trial, and set how it ended. Return False if a request stopped it. Raises what ends the search."""
    finished, failure, error = True, "", None
    try:
        if live.state is None:
            finished = host.run(live, described["resume_from"])
    except ENDS_THE_SEARCH:
        raise
    except call.catch as raised:
        if isinstance(raised, ConfigurationError) and described["first"]:
            raise  # every trial would meet it
        error, failure = raised, redact(f"{type(raised).__name__}: {raised}")
    agreed = _agree(shared, {"finished": finished, "failure": failure}, error)
    failures = [str(each["failure"]) for each in agreed if each["failure"]]
    if failures:
        live.state, live.reason = TrialState.FAILED, failures[0]
        if error is not None:
            LOGGER.warning("Trial %d failed, and the search continues: %s", live.number, failures[0], exc_info=error)
            if host.device.is_out_of_memory(error):
                error.__traceback__ = None
                host.release()
                gc.collect()
                host.device.release_memory()
    elif live.state is None and all(each["finished"] for each in agreed):
        live.state = TrialState.COMPLETE
    return live.state is not None


def _agree(shared: Collectives, own: dict[str, Any], error: BaseException | None) -> list[dict[str, Any]]:
    """Return what every rank found. A rank that failed alone raises its error, so that its process ends.

    The others then lose contact, and end too: what a trial of several processes has half done cannot be taken up again.
    """
    if shared.world_size == 1 or error is None:
        return cast("list[dict[str, Any]]", shared.gather(cast(Json, own)))
    found: list[list[Json]] = []
    waiting = threading.Thread(target=lambda: found.append(shared.gather(cast(Json, own))), daemon=True)
    waiting.start()
    waiting.join(GRACE)
    if not found:
        raise error
    return cast("list[dict[str, Any]]", found[0])


@define(eq=False)
class Leader:
    """What rank 0 does for a search; on the other ranks, it is never asked. Several trials may be in progress.

    search: the backend's. record: what is recorded so far. handle: the library's own object of the newest trial.
    """

    host: SearchPlace
    call: SearchCall
    search: Search | None = None
    record: SearchRecord = field(init=False)
    handle: Any = None
    none_ended: bool = True
    _log: SearchLog = field(init=False)
    _pending: list[Proposal] = field(factory=list)
    _present: dict[int, Proposal] = field(factory=dict)
    _deadline: float | None = None
    _best: set[str] = field(factory=set)

    def begin(self) -> None:
        """Take up the record of a search that is resumed, or start a new one."""
        call, folder = self.call, self.host.folder
        self._log = SearchLog(folder)
        found = self._found()
        call_definition = call.definition
        options = SearchOptions(call.space, call.aim.directions, call.trials, call.seed, call.options)
        self.search = call.backend.make(options)
        if found is None:
            self.record = SearchRecord(evolve(call_definition, run=uuid.uuid4().hex))
            self._log.start(self.record.definition)
        else:
            self.record = found
            self._resume(found, call_definition)
        if call.timeout is not None:
            self._deadline = self.host.clock.monotonic() + call.timeout

    def _found(self) -> SearchRecord | None:
        """Return the record of the search that is resumed; None for a new search."""
        call, folder = self.call, self.host.folder
        if not call.resume:
            return None
        found = read_search(folder)
        if found is None and call.resume is True:
            raise MissingCheckpointError(
                f"resume=True found no search in {folder.location()}; name the output_dir of one, or choose "
                "resume='auto', which starts a new search there."
            )
        if found is not None and (differences := found.definition.differences(call.definition)):
            raise CheckpointError(
                f"The search in {folder.location()} is another one: {listed(differences)}. Resume with what it was "
                "started with, or choose another output_dir, or resume=False for a new search."
            )
        return found

    def _resume(self, found: SearchRecord, wanted: SearchDefinition) -> None:
        assert self.search is not None
        trials = [found.trials[number] for number in sorted(found.trials)]
        if found.sampler is None and trials:
            LOGGER.warning(
                "The random stream of the sampler was not recorded, so the trials that follow are not those that the "
                "search would have tried without the interruption."
            )
        self._pending = list(self.search.load_state(found.sampler, [each.past() for each in trials]))
        for proposal in self._pending:
            recorded, parameters = found.trials[proposal.number].parameters, plain_parameters(proposal.parameters)
            if parameters != recorded:
                raise CheckpointError(
                    f"hp_space now returns {shown(parameters)} for trial {proposal.number}, which was started with "
                    f"{shown(recorded)}; resume with the same search space, or start a new search."
                )
        ended = [each for each in trials if each.state is not None]
        self.none_ended = not ended
        self._log.resume()
        if wanted.trials != found.definition.trials:
            found.definition = evolve(found.definition, trials=wanted.trials)
            self._log.redefine(found.definition)
        self.host.checkpoints.tidy(self.record, self.call.keep, self._known_checkpoints())
        self._best = self._best_checkpoints()
        LOGGER.info("The search resumes after %d trials; %d had not ended.", len(ended), len(self._pending))

    # A trial

    def next(self) -> Json:
        """Return the description of the next trial for all ranks; None at the end of the search."""
        assert self.search is not None
        self.handle = None
        if self._pending:
            proposal, resumes = self._pending.pop(0), True
        elif (asked := self._asked()) is not None:
            proposal, resumes = asked, False
        else:
            return None
        self._present[proposal.number], self.handle = proposal, proposal.trial
        return self.described(proposal.number, resumes)

    def described(self, number: int, resumes: bool) -> dict[str, Any]:
        """Return the description of a trial in progress. resumes: whether it continues from its newest checkpoint."""
        proposal, recorded = self._present[number], self.record.trials[number]
        run = run_name(self.record.definition.run, number)
        label = self.call.name(proposal.trial) if self.call.name is not None else None
        return {
            "first": self.none_ended,
            "number": number,
            "identifier": proposal.identifier,
            "name": recorded.name,
            "label": label,
            "run": run,
            "parameters": dict(recorded.parameters),
            "drawn": dict(recorded.drawn),
            "plain": isinstance(proposal.trial, dict),
            "reports": [[step, list(map(repr, values))] for step, values in recorded.reports.items()],  # for NaN
            "pruned_at": recorded.pruned_at,
            "diverged_at": recorded.diverged_at,
            "resume_from": self.host.checkpoints.newest(recorded.name, run) if resumes else None,
        }

    def _asked(self) -> Proposal | None:
        """Ask for a trial and record it; None if there is none, or no time. One that cannot be run counts as failed."""
        assert self.search is not None
        wanted = self.record.definition.trials
        while wanted is None or len(self.record.trials) < wanted:
            if self._deadline is not None and self.host.clock.monotonic() >= self._deadline:
                LOGGER.info("The time of the search is up after %d trials.", len(self.record.trials))
                return None
            proposal = self.search.ask()
            if proposal is None:
                return None
            problem: ConfigurationError | None = None
            parameters: dict[str, Any] = {}
            try:
                parameters = plain_parameters(proposal.parameters)
                self.host.check(parameters)
            except ConfigurationError as error:
                if self.none_ended:
                    self.search.tell(proposal, TrialState.FAILED)
                    raise
                problem = error
            export = self.search.export_trial(proposal)
            name = self._name_of(proposal)
            recorded = RecordedTrial(
                proposal.number, name, proposal.identifier, parameters, export.drawn, export.details
            )
            self._log.proposed(recorded, self.search.export_state())
            self.record.trials[recorded.number] = recorded
            if problem is None:
                return proposal
            self._end(proposal, TrialState.FAILED, None, redact(str(problem)), 0.0, None)
        return None

    def _name_of(self, proposal: Proposal) -> str:
        """Return the path of a trial's folder within that of the search, unlike those of the other trials."""
        name = f"run-{proposal.identifier}" if self.call.name is None else self.call.name(proposal.trial)
        if not isinstance(name, str) or not is_trial_name(name):
            raise ConfigurationError(
                f"hp_name returned {shown(name)}, which cannot be the name of a folder within output_dir; let it "
                "return a short text without '..', and without a dot at its start."
            )
        taken = {each.name for each in self.record.trials.values()}
        return f"{name}-{proposal.number}" if name in taken else name

    def report(self, number: int, step: int, values: Sequence[float], has_diverged: bool, asks: bool) -> bool:
        """Record an evaluation of a trial, and return whether it goes on. asks: whether it may be pruned."""
        assert self.search is not None
        proposal, recorded = self._present[number], self.record.trials[number]
        goes_on = not has_diverged and (not asks or self.search.report(proposal, step, values))
        pruned = not (goes_on or has_diverged)
        self._log.reported(number, step, values, pruned, has_diverged)
        recorded.report(step, tuple(values), pruned, has_diverged)
        return goes_on

    def end(self, number: int, state: TrialState, reason: str | None, seconds: float) -> None:
        """Record how a trial ended, and let the checkpoints go that are not to be kept."""
        proposal, recorded = self._present.pop(number), self.record.trials[number]
        step = self.call.aim.step_of_objective(recorded.reports)
        values = recorded.reports[step] if state is TrialState.COMPLETE and step is not None else None
        run = run_name(self.record.definition.run, number)
        checkpoint = self.host.checkpoints.of_objective(recorded.name, run, step)
        self._end(proposal, state, values, reason, seconds, checkpoint)

    def _end(
        self,
        proposal: Proposal,
        state: TrialState,
        values: Sequence[float] | None,
        reason: str | None,
        seconds: float,
        checkpoint: str | None,
    ) -> None:
        assert self.search is not None
        recorded = self.record.trials[proposal.number]
        self.search.tell(proposal, state, values)
        export = self.search.export_trial(proposal)
        recorded.state, recorded.values, recorded.reason = state, values, reason
        recorded.seconds, recorded.checkpoint = seconds, checkpoint
        recorded.drawn, recorded.details = export.drawn, export.details
        self._log.ended(recorded, self.search.export_state())
        self.none_ended = False
        recorded.reports, recorded.details = {}, {}  # a search of many trials does not grow by them
        shown_values = "" if values is None else f", objective {', '.join(f'{each:.6g}' for each in values)}"
        because = f" ({reason})" if reason else ""
        LOGGER.info("Trial %d in %s is %s%s%s.", recorded.number, recorded.name, state.value, shown_values, because)
        best, before = self._best_checkpoints(), self._best
        self.host.checkpoints.tidy(self.record, self.call.keep, before | best)
        self._best = best

    def _best_checkpoints(self) -> set[str]:
        best = best_trials(self.record.trials.values(), self.record.definition.directions)
        return {each.checkpoint for each in best if each.checkpoint is not None}

    def _known_checkpoints(self) -> set[str]:
        return {each.checkpoint for each in self.record.trials.values() if each.checkpoint is not None}

    # The end

    def result(self) -> Json:
        """Return the best trials. Raises RunStateError if none was complete."""
        best = best_trials(self.record.trials.values(), self.record.definition.directions)
        if not best:
            reasons = [f"trial {each.number}: {each.reason}" for each in self.record.trials.values() if each.reason]
            what = listed(reasons) if reasons else "none had ended"
            raise RunStateError(f"No trial of the search was complete, so there is no best one ({what}).")
        return [
            {
                "run_id": each.identifier,
                "objective": list(each.values or ()) if self.call.several else (each.values or (0.0,))[0],
                "hyperparameters": dict(each.parameters),
            }
            for each in best
        ]

    def close(self) -> None:
        """Close the record and the backend."""
        if self.search is not None:
            self._log.close()
            self.search.close()


def run_name(search: str | None, number: int) -> str:
    """Return the name of a trial's run, the same in every process."""
    return blake2b(f"{search}/{number}".encode(), digest_size=16).hexdigest()
