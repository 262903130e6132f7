"""Counters of a run: input tokens and floating-point operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from attrs import define, field

from hexloop.domain.run import Run
from hexloop.ports.batches import Padding

Total = Callable[[float], float]
"""From a number of this rank to the sum over all ranks. Collective."""


def _local(number: float) -> float:
    return number


@define
class TokenCounter:
    """Counts input tokens: all of them, or with `padding_aware` only those that are not padding.

    Padding is determined by the attention mask, or else by the token id `padding`; without either, all tokens are
    counted, with a warning. The sums stay on the device until `settle` adds them to the run state.
    """

    run: Run[Any, Any]
    main_input: str
    padding_aware: bool
    padding: int | None = None
    total: Total = _local
    _pending: Any = field(default=0, init=False)
    _warned: bool = field(default=False, init=False)

    def __call__(self, batch: Any) -> None:
        """Count one micro-batch, unless it is Padding."""
        if isinstance(batch, Padding):
            return
        tokens = batch.get(self.main_input) if isinstance(batch, Mapping) else None
        if tokens is None:
            self._warn(
                f"no tokens are counted, because batches have no {self.main_input!r}; set the model's main_input_name"
            )
        elif self.padding_aware and batch.get("attention_mask") is not None:
            self._pending = self._pending + batch["attention_mask"].sum()
        elif self.padding_aware and self.padding is not None:
            self._pending = self._pending + (tokens != self.padding).sum()
        else:
            self._pending = self._pending + tokens.numel()
            if self.padding_aware:
                self._warn(
                    "all tokens are counted, because there is neither an attention_mask nor a pad_token_id of the "
                    "processing_class; add one of them"
                )

    def settle(self) -> None:
        """Add the pending sums of all ranks to the run state. Collective."""
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
    """Sums the floating-point operations that `operations_in(batch)` estimates."""

    run: Run[Any, Any]
    operations_in: Callable[[Any], float]
    total: Total = _local
    _pending: float = field(default=0.0, init=False)

    def __call__(self, batch: Any) -> None:
        """Count one micro-batch, unless it is Padding."""
        if not isinstance(batch, Padding):
            self._pending += float(self.operations_in(batch))

    def settle(self) -> None:
        """Add the pending sums of all ranks to the run state. Collective."""
        self.run.state.operations += self.total(self._pending)
        self._pending = 0.0


def operations_in(model: Any) -> Callable[[Any], float] | None:
    """Return the model's `floating_point_ops`, or an estimate for transformers' models; None for other models.

    The estimate is 6 operations per parameter and token: the forward and backward pass without embeddings (Kaplan et
    al. 2020, section 2.1).
    """
    own: Callable[[Any], float] | None = getattr(model, "floating_point_ops", None)
    if own is not None or not hasattr(model, "num_parameters"):
        return own
    parameters = model.num_parameters(exclude_embeddings=True)
    main_input = getattr(model, "main_input_name", "input_ids")

    def operations(batch: Any) -> float:
        tokens = batch.get(main_input) if isinstance(batch, Mapping) else None
        return 6.0 * tokens.numel() * parameters if isinstance(tokens, torch.Tensor) else 0.0

    return operations


@define
class OperationMeter:
    """Measures the operations of the first micro-batch of a run, forward and backward, with torch's FLOP counter.

    All later samples are assumed to take as many, so that nothing is measured per step. A resumed run uses the earlier
    measurement.
    """

    run: Run[Any, Any]
    total: Total = _local
    per_sample: int | None = field(default=None, init=False)
    _measured: tuple[float, int] | None = field(default=None, init=False)

    def measure(self, learner: Any) -> None:
        """Measure the next micro-batch of `learner`, unless the run state has a measurement."""
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
        """Update the operations in the run state to its samples. Collective after a measurement."""
        if self._measured is not None:
            (operations, samples), self._measured = self._measured, None
            self.per_sample = round(self.total(operations) / samples)
        if self.per_sample is not None:
            self.run.state.operations = float(self.per_sample * self.run.state.samples)


def measured_operations(model: Any, batch: Any) -> float:
    """Return three times the operations of a forward pass on `batch`, as the backward pass takes twice as many.

    Returns 0 if the model cannot be called with the batch, because a loss function calls it with parts of the batch.
    """
    from torch.utils.flop_counter import FlopCounterMode

    try:
        signature(model.forward).bind(**batch)
    except TypeError:
        return 0.0

    with torch.random.fork_rng(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**batch)
    return 3.0 * float(counter.get_total_flops())
