"""The counters of a run: tokens and floating-point operations, by adapters or by the user's methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from attrs import define, field

from hexloop.adapters.trainable.torch import counters
from hexloop.adapters.trainable.torch.counters import OperationCounter, OperationMeter, TokenCounter
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
    parts: TrainerParts, run: Run[Any, Any], learner: Learner[Any, Any], total: Callable[[float], float]
) -> RunCounters:
    """Return the counters that the arguments and hooks require; without an operation counter, measure operations.

    total: sums a number over all processes.
    """
    counting, each_batch, pending = parts.args.include_num_input_tokens_seen, list[Any](), list[Counter]()
    hooks, tokens = parts.hooks, None
    if counting != "no":
        padding = getattr(parts.processing_class, "pad_token_id", None)
        tokens = TokenCounter(run, parts.main_input_name, counting == "non_padding", padding, total)
        pending.append(tokens)
    operations = hooks.floating_point_ops.method if hooks.floating_point_ops.overridden else None
    operations = operations or counters.operations_in(parts.model)
    if operations is not None:
        each_batch.append(OperationCounter(run, operations, total))
        pending.append(each_batch[0])
    elif not parts.args.torch_compile and parts.args.reproduce is None:
        meter = OperationMeter(run, total)
        meter.measure(learner)
        pending.append(meter)
    if hooks.track_num_input_tokens.overridden:
        each_batch.append(_of_samples(hooks.track_num_input_tokens.method))
    elif tokens is not None:
        each_batch.append(tokens)
    return RunCounters(each_batch, pending, tokens)


def _of_samples(call: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a function that passes each micro-batch to `call`, except one that only fills up a step of this rank."""

    def call_unless_padding(batch: Any) -> None:
        if not isinstance(batch, Padding):
            call(batch)

    return call_unless_padding


def floating_point_operations(model: Any, inputs: Any) -> float:
    """Return the operations of forward and backward on a batch: the model's own figure, an estimate, or measured."""
    estimate = counters.operations_in(model)
    return counters.measured_operations(model, inputs) if estimate is None else estimate(inputs)
