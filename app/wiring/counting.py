"""The counters of a run: tokens and floating-point operations, by adapters or by the user's methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from attrs import define, field

from hexloop.adapters.trainable.torch import counters
from hexloop.adapters.trainable.torch.counters import OperationCounter, OperationMeter, TokenCounter, Total
from hexloop.adapters.trainable.torch.names import is_compiled, unwrapped
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.run import Run
from hexloop.ports.batches import Padding
from hexloop.ports.learner import Learner

Counter: TypeAlias = TokenCounter | OperationCounter | OperationMeter


@define
class RunCounters:
    """The counters of a run, whose counts may stay on the device; `each_batch` are called with every micro-batch.

    tokens: the one that counts tokens, if the arguments require it.
    """

    each_batch: Sequence[Any] = ()
    pending: list[Counter] = field(factory=list)
    tokens: TokenCounter | None = None

    def settle(self) -> None:
        """Add all pending counts to the run's state."""
        for counter in self.pending:
            counter.settle()


def make_counters(
    parts: TrainerParts, run: Run[Any, Any], learner: Learner[Any, Any], total: Total, data_total: Total
) -> RunCounters:
    """Return the counters that the arguments and hooks require; without an operation counter, measure operations.

    total, data_total: sum a number over all processes, and over those that read different samples.
    """
    counting, each_batch, pending = parts.args.include_num_input_tokens_seen, list[Any](), list[Counter]()
    hooks, tokens = parts.hooks, None
    if counting != "no":
        padding = getattr(parts.processing_class, "pad_token_id", None)
        tokens = TokenCounter(run, parts.main_input_name, counting == "non_padding", padding, data_total)
        pending.append(tokens)
    if hooks.track_num_input_tokens.overridden:
        _track_after_each_step(learner, hooks.track_num_input_tokens.method)
    operations = hooks.floating_point_ops.method if hooks.floating_point_ops.overridden else None
    operations = operations or counters.operations_in(parts.unwrapped_model)
    if operations is not None:
        each_batch.append(OperationCounter(run, operations, total))
        pending.append(each_batch[0])
    elif not (parts.args.torch_compile or is_compiled(parts.model)) and parts.args.reproduce is None:
        meter = OperationMeter(run, total)
        meter.measure(learner)
        pending.append(meter)
    if tokens is not None and not hooks.track_num_input_tokens.overridden:
        each_batch.append(tokens)
    return RunCounters(each_batch, pending, tokens)


def _track_after_each_step(learner: Any, track: Callable[[Any], Any]) -> None:
    """Call `track` with each micro-batch after its forward and backward pass, except one that has no samples."""
    micro_step = learner.micro_step

    def tracked_step(batch: Any, window_items: Any, last_of_window: bool) -> Any:
        loss = micro_step(batch, window_items, last_of_window)
        if not isinstance(batch, Padding):
            track(batch)
        return loss

    learner.micro_step = tracked_step


def floating_point_operations(model: Any, inputs: Any) -> float:
    """Return the operations of forward and backward on a batch: the model's own figure, an estimate, or measured."""
    estimate = counters.operations_in(unwrapped(model))
    return counters.measured_operations(model, inputs) if estimate is None else estimate(inputs)
