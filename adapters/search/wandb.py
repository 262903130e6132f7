"""Searches by sweeps of Weights & Biases: the service proposes, and an agent in this process runs the trials.

Sweeps need the service; there is no such thing offline. So this follows wandb's documentation, and is tested with a
module in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from hexloop.adapters.search import ServiceOptions, refuse_unknown_options
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.search.space import Choices, Floats, Integers
from hexloop.domain.wording import shown
from hexloop.ports.search import Proposal, RunTrial, TrialListener, TrialState

METRIC = "eval/loss"
"""The name of the objective in the service, as in transformers."""

KNOWN = ("sweep_id", "project", "name", "entity", "metric")


class WandbService:
    """Search adapter of wandb's sweeps.

    The space returns the configuration of a sweep, or a dictionary of hexloop's distributions, which are searched at
    random. The options are `sweep_id`, of a sweep to join; `project`, `name` and `entity`; and `metric`, the name under
    which the objective is logged. The library's own result is the sweep's identifier.
    """

    def __init__(self, options: ServiceOptions) -> None:
        given = dict(options.options)
        refuse_unknown_options(given, KNOWN, "wandb")
        self._metric = str(given.get("metric") or METRIC)
        self._sweep = given.get("sweep_id")
        self._place = {name: given.get(name) for name in ("project", "entity")}
        self._goal, self._trials = options.directions[0], options.trials
        self._config = _configuration(options.space(None), self._metric, self._goal, given.get("name"))

    def run(self, train: RunTrial, listener: TrialListener) -> tuple[Proposal | None, float | None, Any]:
        """Make the sweep, unless one is joined, and run its trials; return the best one of this process."""
        import wandb

        sweep = self._sweep or wandb.sweep(self._config, **self._place)
        trials = SweepTrials(train, listener, self._metric, -1.0 if self._goal == "maximize" else 1.0)
        wandb.agent(sweep, function=trials.run_one, count=self._trials, **self._place)
        return trials.best, trials.objective, sweep


class SweepTrials:
    """The trials of a sweep that this process runs. best, objective: the best complete one so far."""

    def __init__(self, train: RunTrial, listener: TrialListener, metric: str, sign: float) -> None:
        self._train, self._listener, self._metric, self._sign = train, listener, metric, sign
        self._count = 0
        self.best: Proposal | None = None
        self.objective: float | None = None

    def run_one(self) -> None:
        """Run the trial that the agent has started. One that fails counts as failed, and the agent goes on."""
        import wandb

        run = wandb.run or wandb.init()
        parameters = {str(name): value for name, value in dict(run.config).items()}
        proposal = Proposal(self._count, str(run.id), parameters, parameters)
        self._count += 1
        self._listener.started(proposal)
        began, last = monotonic(), list[float]()

        def report(step: int, values: Sequence[float], metrics: Mapping[str, object], checkpoint: str | None) -> bool:
            last[:] = values
            self._listener.reported(proposal, step, values, False)
            run.log({self._metric: values[0]})
            return True

        try:
            self._train(proposal, report, None)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._listener.ended(proposal, TrialState.FAILED, reason, monotonic() - began)
            run.finish(exit_code=1)
            return
        self._listener.ended(proposal, TrialState.COMPLETE, None, monotonic() - began)
        run.finish()
        if last and (self.objective is None or self._sign * last[0] < self._sign * self.objective):
            self.best, self.objective = proposal, last[0]


def _configuration(space: Any, metric: str, goal: str, name: Any) -> dict[str, Any]:
    """Return the configuration of a sweep. Raises ConfigurationError for a space that is none."""
    if not isinstance(space, Mapping):
        raise ConfigurationError(
            f"hp_space returned {shown(space)}; for backend='wandb', let it return the configuration of a sweep."
        )
    if "parameters" not in space:
        space = {"method": "random", "parameters": {each: _parameter(value) for each, value in space.items()}}
    configuration = {**space, "metric": {**space.get("metric", {}), "name": metric, "goal": goal}}
    return configuration if name is None else {**configuration, "name": name}


def _parameter(value: Any) -> dict[str, Any]:
    """Return a distribution of hexloop as a parameter of a sweep; what is given in wandb's own form stays."""
    if isinstance(value, Choices):
        return {"values": list(value.values)}
    if isinstance(value, Integers):
        if value.log or value.step != 1:
            return {"values": list(value.values)}
        return {"distribution": "int_uniform", "min": value.low, "max": value.high}
    if isinstance(value, Floats):
        if value.values is not None:
            return {"values": list(value.values)}
        kind = "log_uniform_values" if value.log else "uniform"
        return {"distribution": kind, "min": value.low, "max": value.high}
    return dict(value)
