"""What is counted over the micro-batches of a run: tokens, floating-point operations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field

from hexloop.domain.run import Run
from hexloop.ports.batches import Padding

Total = Callable[[float], float]
"""From a number of this process to the sum over all processes, which call it together."""


def _own(number: float) -> float:
    """A process that is alone."""
    return number


@define
class TokenCounter:
    """Counts input tokens: all of them, or with `padding_aware` those that are no padding.

    Which those are the attention mask says, else the id of the padding, `padding`; where nobody does, all are counted,
    with a warning. Such sums stay on the device until `settle` adds them to the state.
    """

    run: Run[Any, Any]
    main_input: str
    padding_aware: bool
    padding: int | None = None
    total: Total = _own
    _pending: Any = field(default=0, init=False)
    _warned: bool = field(default=False, init=False)

    def __call__(self, batch: Any) -> None:
        """Count one micro-batch, unless it is padding."""
        if isinstance(batch, Padding):
            return
        tokens = batch.get(self.main_input)
        if tokens is None:
            self._warn(
                f"no tokens are counted, as the batches have no {self.main_input!r}; give the model main_input_name"
            )
        elif not self.padding_aware:
            self._pending = self._pending + tokens.numel()
        elif batch.get("attention_mask") is not None:
            self._pending = self._pending + batch["attention_mask"].sum()
        elif self.padding is not None:
            self._pending = self._pending + (tokens != self.padding).sum()
        else:
            self._pending = self._pending + tokens.numel()
            self._warn(
                "all tokens are counted, as neither an attention_mask nor the processing_class's pad_token_id says "
                "which are padding; give one of the two"
            )

    def settle(self) -> None:
        """Add what waits, here and in the other processes, to the state."""
        self.run.state.tokens += int(self.total(float(self._pending)))
        self._pending = 0

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            chosen = "non_padding" if self.padding_aware else "all"
            text = "You chose include_num_input_tokens_seen=%r, but %s."
            logging.getLogger("hexloop").warning(text, chosen, problem)


@define
class OperationCounter:
    """Adds up the floating-point operations that `operations_in(batch)` estimates."""

    run: Run[Any, Any]
    operations_in: Callable[[Any], float]
    total: Total = _own
    _pending: float = field(default=0.0, init=False)

    def __call__(self, batch: Any) -> None:
        """Count one micro-batch, unless it is padding."""
        if not isinstance(batch, Padding):
            self._pending += float(self.operations_in(batch))

    def settle(self) -> None:
        """Add what waits, here and in the other processes, to the state."""
        self.run.state.operations += self.total(self._pending)
        self._pending = 0.0


def operations_in(model: Any) -> Callable[[Any], float] | None:
    """The model's own `floating_point_ops`, or 6 operations a parameter and token; None where neither can be said.

    The latter is the forward and backward pass without embeddings (Kaplan et al. 2020, section 2.1), of transformers'
    models, which know their parameters and main input.
    """
    own: Callable[[Any], float] | None = getattr(model, "floating_point_ops", None)
    if own is not None or not hasattr(model, "num_parameters"):
        return own
    parameters = model.num_parameters(exclude_embeddings=True)
    main_input = getattr(model, "main_input_name", "input_ids")

    def operations(batch: Any) -> float:
        tokens = batch.get(main_input)
        return 0.0 if tokens is None else 6.0 * tokens.numel() * parameters

    return operations


@define
class OperationMeter:
    """Measures what the first micro-batch of a run takes, forward and backward, with torch's FLOP counter.

    Each sample is taken to need as much from then on, which costs nothing per step. A resumed run goes by what was
    measured before.
    """

    run: Run[Any, Any]
    total: Total = _own
    per_sample: int | None = field(default=None, init=False)
    _measured: tuple[float, int] | None = field(default=None, init=False)

    def measure(self, learner: Any) -> None:
        """Measure the next micro-batch of `learner`, unless the run knows already."""
        micro_step, own = learner.micro_step, vars(learner).get("micro_step")

        def measured_step(batch: Any, window_items: Any, last_of_window: bool) -> Any:
            del learner.micro_step
            if own is not None:
                learner.micro_step = own
            state = self.run.state
            if state.samples:
                self.per_sample = round(state.operations / state.samples)
                return micro_step(batch, window_items, last_of_window)
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                loss = micro_step(batch, window_items, last_of_window)
            self._measured = float(counter.get_total_flops()), max(1, self.run.batches.rows(batch))
            return loss

        learner.micro_step = measured_step

    def settle(self) -> None:
        """Bring the operations in the state up to date with its samples."""
        if self._measured is not None:
            (operations, samples), self._measured = self._measured, None
            self.per_sample = round(self.total(operations) / samples)
        if self.per_sample is not None:
            self.run.state.operations = float(self.per_sample * self.run.state.samples)


def measured_operations(model: Any, batch: Any) -> float:
    """Three times what a forward pass on `batch` takes: the backward pass takes twice as much. Draws nothing."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.random.fork_rng(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**batch)
    return 3.0 * float(counter.get_total_flops())
