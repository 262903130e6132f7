"""Searches by Ray Tune, which runs the trials in processes of its own: schedulers, searchers, resources, clusters."""

from __future__ import annotations

import inspect
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from attrs import define, field

from hexloop.adapters.search import ServiceOptions, refuse_unknown_options
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.search.space import Choices, Distribution, Floats, Integers
from hexloop.domain.wording import did_you_mean
from hexloop.ports.search import Proposal, RunTrial, TrialFailedError, TrialListener, TrialState

OBJECTIVE = "objective"
"""The name of the objective among the metrics that trials report, as in transformers."""

STEP = "step"

SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
SCOPE, SCOPE_VARIABLE = "ray_scope", "RAY_SCOPE"
"""By which of its reports a trial is compared: an option, and the environment variable that stands for it."""

NEED_EVALUATIONS = ("ASHAScheduler", "AsyncHyperBandScheduler", "MedianStoppingRule", "HyperBandForBOHB",
                    "PopulationBasedTraining")  # fmt: skip
"""Schedulers that decide by evaluations during training."""

LONGEST_ERROR = 4_000
"""Bytes at the end of a traceback that are read."""

OWN = ("run_or_experiment", "config", "num_samples", "raise_on_failed_trial")
"""Parameters of `tune.run` that are not options: the search sets them."""


class RayService:
    """Search adapter of Ray Tune.

    The options are the keywords of `tune.run`, and `ray_scope`, which chooses the reports that trials are compared by.
    Without `resources_per_trial`, a trial gets one CPU, and one GPU if there are any; without `progress_reporter`, a
    table with the objective is printed. Without `search_alg`, proposals are drawn at random, with the search's seed.
    The space returns a dictionary of Ray's distributions, or of hexloop's. A cluster is started on this machine unless
    `ray.init` was called.

    """

    def __init__(self, options: ServiceOptions) -> None:
        from ray import tune

        if len(options.directions) != 1:
            raise ConfigurationError(
                f"The search has {len(options.directions)} directions, but ray compares trials by one objective; use "
                "backend='optuna' for several."
            )
        given = dict(options.options)
        self._scope = _scope_of(given.pop(SCOPE, None) or os.environ.get(SCOPE_VARIABLE) or SCOPES[0])
        known = [name for name in inspect.signature(tune.run).parameters if name not in OWN and name[0] != "_"]
        refuse_unknown_options(given, [*known, SCOPE], "ray")
        _refuse_blind_scheduler(given.get("scheduler"), options.evaluates)
        if given.get("resources_per_trial") is None:
            given["resources_per_trial"] = {"cpu": 1, **({"gpu": 1} if options.accelerators else {})}
        if options.timeout is not None:
            given.setdefault("time_budget_s", options.timeout)
        self._mode = options.directions[0][:3]
        if given.get("search_alg") is None:
            given["search_alg"] = _seeded(options.seed, given.pop("max_concurrent_trials", None))
        self._options, self._trials = given, options.trials
        self._space = options.space
        self._given_callbacks = list(given.pop("callbacks", None) or [])

    def run(self, train: RunTrial, listener: TrialListener) -> tuple[Proposal | None, float | None, Any]:
        """Run the trials; return the best one, its last objective, and Ray's analysis."""
        from ray import tune

        options = dict(self._options)
        if options.get("progress_reporter") is None:
            options["progress_reporter"] = tune.CLIReporter(metric_columns=[OBJECTIVE])
        scheduler = options.get("scheduler")
        if getattr(scheduler, "_metric", OBJECTIVE) is None or isinstance(scheduler, str):  # as tune.run wants it
            options = {"metric": OBJECTIVE, "mode": self._mode, **options}
        observer = _observer(listener)
        with _own_warnings_ignored(), _signals_unchanged():
            analysis = tune.run(
                tune.with_parameters(_trial, train=train),
                config=distributions_of(self._space(None)),
                num_samples=self._trials or 1,
                raise_on_failed_trial=False,
                callbacks=[*self._given_callbacks, observer],
                **options,
            )
            best = analysis.get_best_trial(metric=OBJECTIVE, mode=self._mode, scope=self._scope)
        if best is None or OBJECTIVE not in (best.last_result or {}):
            return None, None, analysis
        return observer.proposal_of(best), float(best.last_result[OBJECTIVE]), analysis


def distributions_of(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space with Ray's distributions in the place of hexloop's."""
    ours = (Choices, Floats, Integers)
    return {name: _distribution(each) if isinstance(each, ours) else each for name, each in space.items()}


def _distribution(wanted: Distribution) -> Any:
    from ray import tune

    if isinstance(wanted, Choices):
        return tune.choice(list(wanted.values))
    if wanted.values is not None and (wanted.step not in (None, 1)):
        return tune.choice(list(wanted.values))
    if isinstance(wanted.low, int) and isinstance(wanted.high, int):
        return (tune.lograndint if wanted.log else tune.randint)(wanted.low, wanted.high + 1)
    return (tune.loguniform if wanted.log else tune.uniform)(wanted.low, wanted.high)


def _seeded(seed: int, most: int | None) -> Any:
    """Return Ray's searcher at random, with a seed. most: how many trials run at a time, None for any number."""
    from ray.tune.search.basic_variant import BasicVariantGenerator

    return BasicVariantGenerator(random_state=seed, max_concurrent=most or 0)


def _scope_of(scope: Any) -> str:
    if scope not in SCOPES:
        raise ConfigurationError(
            f"You chose {SCOPE}={scope!r}, but it is one of {', '.join(SCOPES)}; "
            f"{did_you_mean(str(scope), SCOPES, 'choose one of them')}."
        )
    return str(scope)


def _refuse_blind_scheduler(scheduler: Any, evaluates: bool) -> None:
    """Raise ConfigurationError for a scheduler that would never learn of an evaluation."""
    if evaluates or scheduler is None:
        return
    names = {each.__name__ for each in type(scheduler).__mro__} if not isinstance(scheduler, str) else {scheduler}
    if found := [name for name in NEED_EVALUATIONS if name in names]:
        raise ConfigurationError(
            f"You chose the scheduler {found[0]}, which decides by evaluations during training, but "
            "eval_strategy='no'; set eval_strategy='steps' or 'epoch'."
        )


def _trial(config: dict[str, Any], train: RunTrial) -> None:
    """Train a trial in a process of Ray."""
    import tempfile

    from ray import tune

    identifier = tune.get_context().get_trial_id() or ""
    parameters = {name: value for name, value in config.items() if name != "wandb"}

    def report(step: int, values: Sequence[float], metrics: Mapping[str, Any], checkpoint: str | None) -> bool:
        facts = {**metrics, OBJECTIVE: values[0], STEP: step}
        try:
            if checkpoint is None:
                tune.report(facts)
                return True
            with tempfile.TemporaryDirectory() as folder:
                _copy(checkpoint, os.path.join(folder, os.path.basename(checkpoint)))
                tune.report(facts, checkpoint=tune.Checkpoint.from_directory(folder))
        except SystemExit:  # by Ray, in a trial that its scheduler has stopped
            return False
        return True

    resumed = tune.get_checkpoint()
    proposal = Proposal(_number_in(identifier, 0), identifier, parameters, parameters)
    if resumed is None:
        train(proposal, report, None)
        return
    with resumed.as_directory() as folder:
        names = sorted(os.listdir(folder))
        train(proposal, report, os.path.join(folder, names[0]) if names else None)


def _copy(source: str, target: str) -> None:
    import shutil

    shutil.copytree(source, target, symlinks=True)


def _number_in(identifier: str, otherwise: int) -> int:
    """Return the number at the end of Ray's identifier of a trial, where it counts them."""
    _, _, number = identifier.rpartition("_")
    return int(number) if number.isdecimal() and len(number) < 10 else otherwise


def _observer(listener: TrialListener) -> Any:
    """Return a callback of Ray that reports what becomes of the trials."""
    from ray import tune

    class Observer(tune.Callback):  # type: ignore[misc]  # Ray is untyped here
        """Reports to a listener, in the process of the search."""

        def __init__(self) -> None:
            self.trials = SeenTrials(listener)

        def proposal_of(self, trial: Any) -> Proposal:
            """Return the proposal of a trial of Ray."""
            return self.trials.proposal_of(trial)

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.trials.start(trial)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            self.trials.report(trial, result)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.trials.end(trial, None)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.trials.end(trial, _reason_of(trial))

    return Observer()


@define
class SeenTrials:
    """The trials that Ray has started, with their numbers: those of Ray, or else in the order of their starts."""

    listener: TrialListener
    _proposals: dict[str, Proposal] = field(factory=dict, init=False)
    _began: dict[str, float] = field(factory=dict, init=False)
    _pruned: set[str] = field(factory=set, init=False)
    _ended: set[str] = field(factory=set, init=False)

    def proposal_of(self, trial: Any) -> Proposal:
        """Return the proposal of a trial, numbered if it is new."""
        identifier = str(trial.trial_id)
        if identifier not in self._proposals:
            parameters = {name: value for name, value in trial.config.items() if name != "wandb"}
            taken = {each.number for each in self._proposals.values()}
            number = _number_in(identifier, len(taken))  # as its process knows it
            number = number if number not in taken else max(taken) + 1
            self._proposals[identifier] = Proposal(number, identifier, parameters, trial)
        return self._proposals[identifier]

    def start(self, trial: Any) -> None:
        """Take up a trial that starts; one that Ray starts again after a failure is known already."""
        identifier = str(trial.trial_id)
        if identifier not in self._began:
            self._began[identifier] = monotonic()
            self.listener.started(self.proposal_of(trial))

    def report(self, trial: Any, result: Mapping[str, Any]) -> None:
        """Take up a report. Ray marks the one with which its scheduler ends a trial as done."""
        step, value = result.get(STEP), result.get(OBJECTIVE)
        stop = bool(result.get("done"))
        if stop:
            self._pruned.add(str(trial.trial_id))
        if isinstance(step, int) and value is not None:
            self.listener.reported(self.proposal_of(trial), step, [float(value)], stop)

    def end(self, trial: Any, failure: str | None) -> None:
        """Take up the end of a trial. failure: why it failed."""
        identifier = str(trial.trial_id)
        if identifier in self._ended:
            return
        self._ended.add(identifier)
        pruned = identifier in self._pruned
        state = TrialState.FAILED if failure is not None else TrialState.PRUNED if pruned else TrialState.COMPLETE
        seconds = monotonic() - self._began.get(identifier, monotonic())
        reason = failure if failure is not None else "stopped by the scheduler" if pruned else None
        self.listener.ended(self.proposal_of(trial), state, reason, seconds)


def _reason_of(trial: Any) -> str:
    """Return why a trial failed: the last line of what Ray wrote about it, which names the exception."""
    try:
        with open(trial.error_file, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - LONGEST_ERROR, 0))
            lines = file.read(LONGEST_ERROR).decode(errors="replace").splitlines()
    except (OSError, TypeError):  # there is no such file, or no path of one
        lines = []
    found = next((line.strip() for line in reversed(lines) if line.strip()), "Ray reports no reason")
    return found.removeprefix(f"{TrialFailedError.__module__}.{TrialFailedError.__name__}: ")


@contextmanager
def _own_warnings_ignored() -> Iterator[None]:
    """Ignore the warnings that Ray's own modules raise about themselves."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, ResourceWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category, module=r"ray(\.|$)")
        yield


@contextmanager
def _signals_unchanged() -> Iterator[None]:
    """Restore the handlers of signals: Ray leaves its own, with which the next Ctrl+C ends nothing."""
    names = [name for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # only there can they have changed
            for name, handler in before.items():
                if handler is not None:
                    signal.signal(getattr(signal, name), handler)
