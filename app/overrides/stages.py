"""The stages of a run that overridden methods of transformers' Trainer carry out: a boundary, an epoch, the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from attrs import define, field, frozen

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.calling import fitted_by_name, most_positional
from hexloop.app.hooks import Hook
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.evaluation import BestMetric, best_metric_named
from hexloop.domain.events import AnyEvent, EpochEnded, Paused, StepEnded, TrainEnded
from hexloop.domain.run import Run
from hexloop.domain.state import RunState

VALUES = ("tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "start_time", "learning_rate")
"""The parameters of `_maybe_log_save_evaluate`, of which transformers passes the last one by name."""

Events = Generator[AnyEvent, None, None]
Dispatch = Callable[[AnyEvent], None]
Report = Callable[[dict[str, float]], None]
Watch = Callable[[Events], Events]

PAUSE_INTERVAL = 1.0
"""Seconds after which a paused process communicates again, if there are others."""


@frozen
class Finalized(TrainEnded):
    """A run that an overridden `_finalize_training` ended. The method itself has called the callbacks.

    output: what the method returned, which `train` returns.
    """

    output: Any = None


@define
class Stages:
    """Runs an epoch, or the end of a run, in an overridden method, as one action without events in between.

    The standard version of each method goes through the events of its stage; an override has to call it.
    loader: of the training data. finish_pushes: waits for what is not published yet, after a run that was stopped, or
    not. resumed: the location of the checkpoint that the run resumes from; None if it is new. watch: measures the time
    between events, or returns them.
    position: epochs done when the run started, and micro-batches of the current one.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    loader: Any
    finish_pushes: Callable[[bool], None]
    resumed: str | None = field(default=None, init=False)
    dispatch: Dispatch = field(init=False)
    watch: Watch = field(init=False)
    start_time: float = field(factory=time.time, init=False)
    position: tuple[int, int] = field(default=(0, 0), init=False)
    _pending: dict[str, Events] = field(factory=dict, init=False)

    def start(self, resumed: str | None, watch: Watch) -> None:
        """Let the overridden methods carry out their stages. Called once the run is restored."""
        self.resumed, self.watch = resumed, watch
        parts, run, state = self.parts, self.run, self.run.state
        done = state.batches > 0 and state.batches == run.plan.batches_per_epoch
        self.position = (state.epoch + 1, 0) if done else (state.epoch, state.batches)
        self.dispatch = parts.dispatcher.dispatch
        if parts.hooks.maybe_log_save_evaluate.overridden:
            self.dispatch = _with_overridden_boundary(parts, run, self.start_time, self.dispatch)
        if parts.hooks.run_epoch.overridden:
            run.around_epoch = self._epoch
        if parts.hooks.finalize_training.overridden:
            run.around_finish = self._end
        elif parts.hooks.finish_current_push.overridden or parts.args.push_to_hub:
            run.around_finish = self._end_and_push
        if parts.hooks.init_training_state.overridden:
            self._initialize()

    def proceed(self, method: str) -> AnyEvent:
        """Go through the events of the stage of `method`, for its standard version; return the last event.

        Raises RunStateError if the run is not at that stage.
        """
        events = self._pending.pop(method, None)
        if events is None:
            raise RunStateError(
                f"{method} belongs to one moment of a run, and can only be called once, from an override of it; call "
                "train() or stream() instead."
            )
        last: AnyEvent | None = None
        with closing(self.watch(events)) as watched:
            for last in watched:
                self.dispatch(last)
                if isinstance(last, Paused):
                    wait_while_paused(self.parts)
        assert last is not None  # each stage ends with an event of its own
        return last

    def _initialize(self) -> None:
        plan, state = self.run.plan, self.parts.state
        position = self.parts.hooks.init_training_state(
            plan.total_steps, self._steps_per_epoch, state.num_train_epochs, self.resumed, self.parts.trial
        )
        if position != self.position:
            raise ConfigurationError(
                f"_init_training_state returned {position!r}, but the run starts after {self.position[0]} epochs and "
                f"{self.position[1]} micro-batches; return what super()._init_training_state(...) returns, and change "
                "the data or the checkpoint to start elsewhere."
            )

    def _epoch(self, events: Events) -> Iterator[AnyEvent]:
        """Run an epoch in an overridden `_run_epoch`."""
        plan, parts = self.run.plan, self.parts
        batches = plan.batches_per_epoch
        self._carry_out(
            parts.hooks.run_epoch,
            "_run_epoch",
            events,
            model=parts.model_wrapped,
            epoch=self.run.state.epoch,
            train_dataloader=self.loader,
            steps_in_epoch=plan.total_steps * plan.accumulation if batches is None else batches,
            num_update_steps_per_epoch=self._steps_per_epoch,
            trial=parts.trial,
            ignore_keys_for_eval=parts.ignore_keys_for_eval,
            start_time=self.start_time,
            resume_from_checkpoint=self.resumed,
            epochs_trained=self.position[0],
            steps_trained_in_current_epoch=self.position[1],
        )
        yield from ()

    def _end(self, events: Events) -> Iterator[AnyEvent]:
        """End the run in an overridden `_finalize_training`."""
        ended: list[TrainEnded] = []
        hooks, args = self.parts.hooks, self.parts.args

        def noting() -> Events:
            for event in self._end_and_push(events):
                yield event
                ended.extend([event] if isinstance(event, TrainEnded) else [])

        samples, planned = (
            self.parts.adapters.framework.sample_count(self.loader),
            self.run.plan.total_steps * self.run.state.global_batch_size,
        )
        given = planned if samples is None or args.max_steps > 0 else samples * args.num_train_epochs
        output = self._carry_out(
            hooks.finalize_training,
            "_finalize_training",
            noting(),
            self.parts.trial,
            given,
            self.start_time,
        )
        (last,) = ended
        yield Finalized(last.step, last.metrics, last.stopped, last.reasons, output)

    def _end_and_push(self, events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
        """End the run, and then finish publishing, by an overridden `_finish_current_push` if there is one."""
        hook = self.parts.hooks.finish_current_push
        for event in events:
            yield event
            if isinstance(event, TrainEnded) and hook.overridden:
                hook()
            elif isinstance(event, TrainEnded) and self.parts.args.push_to_hub:
                self.finish_pushes(event.stopped)

    def _carry_out(self, hook: Hook, method: str, events: Events, *values: Any, **named: Any) -> Any:
        """Call the overridden method of a stage. Raises RunStateError if it does not go through the events."""
        self._pending[method] = events
        result = hook(*values, **named)
        if self._pending.pop(method, None) is not None:
            raise RunStateError(
                f"The overridden {method} returned without calling super().{method}(...), which does what belongs to "
                "the run at this moment; call it, or override train to replace all of it."
            )
        return result

    @property
    def _steps_per_epoch(self) -> int:
        steps = self.run.plan.steps_per_epoch
        return self.run.plan.total_steps if steps is None else steps


def wait_while_paused(parts: TrainerParts) -> None:
    """Wait until the run is no longer paused; see `Session.wait_while_paused`."""
    alone = parts.adapters.mesh.size == 1
    parts.requests.wait_while_paused(None if alone else min(PAUSE_INTERVAL, parts.args.ddp_timeout / 4))


# A boundary


def _with_overridden_boundary(
    parts: TrainerParts, run: Run[Any, Any], start_time: float, dispatch: Dispatch
) -> Dispatch:
    """Return a `dispatch` that also calls an overridden `_maybe_log_save_evaluate` after every step and epoch.

    The method receives the sum of the losses since the last log, as a tensor that is set to zero in place by a log.
    """
    method = fitted_by_name(parts.hooks.maybe_log_save_evaluate.method, VALUES, named=1)
    from hexloop.app.assembly.torch.learner import SummedLoss, undrained

    # transformers averages this number over the processes, where hexloop adds the shares that they compute
    processes = 1 if not parts.rules.own_losses else parts.adapters.mesh.data.size
    summed = SummedLoss(parts, processes, undrained(parts, run.losses))
    last = StepEnded(0, (), None, True)

    def dispatch_and_call(event: AnyEvent) -> None:
        nonlocal last
        dispatch(event)
        if isinstance(event, StepEnded):
            last = event
            for share in event.losses:
                summed.add(share, run.state.step - run.state.logged_step)
        elif not isinstance(event, EpochEnded):
            return
        method(
            summed.total,
            last.gradient_norm,
            parts.model_wrapped,
            parts.trial,
            run.state.epoch,
            parts.ignore_keys_for_eval,
            start_time,
            run.state.learning_rate,
        )
        parts.control.set_due_actions([])

    return dispatch_and_call


# A log


def after_each_step(parts: TrainerParts) -> tuple[Callable[[], None], Report]:
    """Return what is called after each optimizer step, and `log`.

    An overridden `_get_learning_rate` is called there, before the schedule advances; its rate is logged.
    """
    call = partial(parts.dispatcher.call, "on_optimizer_step")
    log = _log_of(parts)
    get_learning_rate = parts.hooks.get_learning_rate
    if not get_learning_rate.overridden:
        return call, log
    rate: float | None = None

    def call_and_ask() -> None:
        nonlocal rate
        call()
        rate = get_learning_rate()

    def log_with_rate(values: dict[str, float]) -> None:
        if "learning_rate" in values and rate is not None:
            values["learning_rate"] = rate
        log(values)

    return call_and_ask, log_with_rate


def _log_of(parts: TrainerParts) -> Report:
    """Return `log`, which an overridden `store_flos` precedes."""
    log: Report = _timed_log(parts.hooks.log) if parts.hooks.log.overridden else parts.hooks.log.method
    if not parts.hooks.store_flos.overridden:
        return log

    def store_and_log(values: dict[str, float]) -> None:
        parts.hooks.store_flos()
        if "total_flos" in values:
            values["total_flos"] = parts.state.total_flos
        log(values)

    return store_and_log


def _timed_log(log: Hook) -> Report:
    """Return an overridden `log` that also receives, with a loss, the time at which the run started, in seconds."""
    start_time, method = time.time(), log.method
    if most_positional(method) < 2:
        return method  # written for earlier releases of transformers

    def log_with_time(values: dict[str, float]) -> None:
        if "loss" in values:
            method(values, start_time)
        else:
            method(values)

    return log_with_time


# The best metric


@frozen
class ChosenByOverride(BestMetric):
    """Lets an overridden `_determine_best_metric` decide whether an evaluation is the best."""

    method: Callable[..., Any] = lambda **_: False
    trial: Any = None

    def observe(self, state: RunState, metrics: Mapping[str, float]) -> bool:
        """Call the method, which records the metric in the Trainer's state itself."""
        return bool(self.method(metrics=dict(metrics), trial=self.trial))


def choose_best_metric(parts: TrainerParts) -> BestMetric:
    """Return what decides which evaluation of a run is the best."""
    hook = parts.hooks.determine_best_metric
    return ChosenByOverride(method=hook.method, trial=parts.trial) if hook.overridden else best_metric_named(parts.args)
