"""Searches whose library runs the trials by itself, in processes of its own: what it calls, and what is recorded."""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from hexloop.app.assembly.searches import ServiceOptions
from hexloop.app.devices import count_accelerators
from hexloop.app.search.checkpoints import TrialCheckpoints
from hexloop.app.search.parameters import plain_parameters
from hexloop.app.search.results import BestRun
from hexloop.app.search.searching import SearchCall, SearchPlace, run_name
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.redaction import redact
from hexloop.domain.search.records import RecordedTrial, SearchLog, SearchRecord, is_trial_name
from hexloop.domain.search.trial import Aim, LiveTrial
from hexloop.domain.wording import listed, shown
from hexloop.ports.search import Proposal, Report, TrialFailedError, TrialState


def search_by_service(place: SearchPlace, call: SearchCall, trainer: Any, run: Callable[..., bool]) -> BestRun:
    """Let a library run the trials of a search, and return the best one, with the library's own result.

    trainer: is sent to the processes of the library, without its model. run: a function of a module, which trains a
    trial with it. The record of the search is written here. Raises ConfigurationError for what a service cannot do,
    and RunStateError if no trial has an objective.
    """
    if call.resume:
        raise ConfigurationError(
            f"You chose resume={call.resume!r}, but the search backend {call.backend.name} runs the trials by itself; "
            "leave it out, and resume with the library's own means."
        )
    assert call.backend.service is not None
    options = ServiceOptions(
        space=call.space,
        directions=call.aim.directions,
        trials=call.trials,
        seed=call.seed,
        options=call.options,
        timeout=call.timeout,
        evaluates=_evaluates(trainer),
        accelerators=count_accelerators(),
    )
    service = call.backend.service(options)
    recorder = Recorder(place, call, SearchRecord(evolve(call.definition, run=uuid.uuid4().hex)))
    sent = copy.copy(trainer)
    sent.model = sent.model_wrapped = None
    train = ServedTrials(
        sent, run, os.path.abspath(place.location("")), place.group, call.aim, call.name, recorder.record.definition.run
    )
    recorder.begin()
    try:
        best, objective, summary = service.run(train, recorder)
    finally:
        recorder.close()
    if best is None or objective is None:
        reasons = [f"trial {each.number}: {each.reason}" for each in recorder.record.trials.values() if each.reason]
        raise RunStateError(
            "No trial of the search has an objective, so there is no best one"
            f" ({listed(reasons) if reasons else 'none had ended'})."
        )
    return BestRun(best.identifier, objective, plain_parameters(best.parameters), summary)


def _evaluates(trainer: Any) -> bool:
    strategy = trainer.args.eval_strategy
    return bool(getattr(strategy, "value", strategy) != "no")


def name_of(proposal: Proposal, name: Callable[[Any], str] | None) -> str:
    """Return the path of a trial's folder within that of the search. name: `hp_name`."""
    found = f"run-{proposal.identifier}" if name is None else name(proposal.parameters)
    if not isinstance(found, str) or not is_trial_name(found):
        raise ConfigurationError(
            f"hp_name returned {shown(found)}, which cannot be the name of a folder within output_dir; let it return a "
            "short text without '..', and without a dot at its start."
        )
    return found


@define(eq=False)
class ServedTrial(LiveTrial):
    """A trial whose metrics are reported as well. metrics: those of its newest evaluation."""

    metrics: Mapping[str, Any] = field(factory=dict)

    def observe(self, step: int, objective: Any, metrics: Mapping[str, Any]) -> bool:
        """Take up an evaluation; see `LiveTrial.observe`."""
        self.metrics = metrics
        return super().observe(step, objective, metrics)

    def conclude(self, step: int, objective: Any, metrics: Mapping[str, Any]) -> None:
        """Take up the evaluation after a run without any."""
        self.metrics = metrics
        super().conclude(step, objective, metrics)


@frozen
class ServedTrials:
    """Trains the trials of a library, in its processes, to which it is pickled. See `hexloop.ports.search.RunTrial`.

    trainer: without a model. run: trains a trial with it. folder: of the search, an absolute path. name: `hp_name`.
    search: the name of the search, from which those of the runs are derived.
    """

    trainer: Any
    run: Callable[..., bool]
    folder: str
    group: str
    aim: Aim
    name: Callable[[Any], str] | None
    search: str | None

    def __call__(self, proposal: Proposal, report: Report, checkpoint: str | None) -> None:
        """Train a trial to its end, or until it is pruned."""
        name = name_of(proposal, self.name)
        live = ServedTrial(
            number=proposal.number,
            identifier=proposal.identifier,
            name=name,
            label=name if self.name is not None else None,
            folder=os.path.join(self.folder, *name.split("/")),
            group=self.group,
            run=run_name(self.search, proposal.number),
            parameters=plain_parameters(proposal.parameters),
            handle=dict(proposal.parameters),
            aim=self.aim,
            decide=lambda step, values, diverged, asks: decide(step, values, diverged),
        )
        sent: list[str | None] = [None]

        def decide(step: int, values: Sequence[float], diverged: bool) -> bool:
            newest = newest_checkpoint(live.folder, live.run)
            fresh = newest if newest != sent[0] else None
            sent[0] = newest
            return report(step, values, live.metrics, fresh) and not diverged

        # A trial that is started again may have saved after its last report.
        resume_from = checkpoint if checkpoint is not None else newest_checkpoint(live.folder, live.run)
        finished = self.run(self.trainer, live, resume_from)
        if live.state is TrialState.FAILED:
            raise TrialFailedError(str(live.reason))
        if not finished:
            raise TrialFailedError("it was stopped by a request")


def newest_checkpoint(folder: str, run: str) -> str | None:
    """Return the newest complete checkpoint of a run in the folder of a trial; None if there is none."""
    from hexloop.app.assembly.storage import storage_for
    from hexloop.domain.checkpoints.selection import newest_first, readable_manifests

    manifests = readable_manifests(storage_for(folder))
    found = next(iter(newest_first({name: each for name, each in manifests.items() if each.run == run})), None)
    return None if found is None else os.path.join(folder, found)


@define(eq=False)
class Recorder:
    """Records what becomes of the trials, in the process that started the library; see `TrialListener`."""

    place: SearchPlace
    call: SearchCall
    record: SearchRecord
    _log: SearchLog = field(init=False)
    _names: dict[int, str] = field(factory=dict, init=False)

    def begin(self) -> None:
        """Start the record."""
        self._log = SearchLog(self.place.folder)
        self._log.start(self.record.definition)

    def close(self) -> None:
        """Close the file of the record."""
        self._log.close()

    def started(self, proposal: Proposal) -> None:
        """Record a trial that starts."""
        parameters = plain_parameters(proposal.parameters)
        name = name_of(proposal, self.call.name)
        trial = RecordedTrial(proposal.number, name, proposal.identifier, parameters, parameters, {})
        self.record.trials[proposal.number] = trial
        self._log.proposed(trial, None)

    def reported(self, proposal: Proposal, step: int, values: Sequence[float], stop: bool) -> None:
        """Record an evaluation."""
        self.record.trials[proposal.number].report(step, tuple(values), pruned=stop, diverged=False)
        self._log.reported(proposal.number, step, values, stop)

    def ended(self, proposal: Proposal, state: TrialState, reason: str | None, seconds: float) -> None:
        """Record the end of a trial. One that ends without an objective has failed."""
        trial = self.record.trials[proposal.number]
        step = self.call.aim.step_of_objective(trial.reports)
        if state is TrialState.COMPLETE and step is None:
            state, reason = TrialState.FAILED, "it reported no objective"
        trial.state, trial.seconds = state, seconds
        trial.reason = None if reason is None else redact(reason)
        trial.values = trial.reports[step] if state is TrialState.COMPLETE and step is not None else None
        checkpoints: TrialCheckpoints = self.place.checkpoints
        trial.checkpoint = checkpoints.of_objective(
            trial.name, run_name(self.record.definition.run, trial.number), step
        )
        self._log.ended(trial, None)
