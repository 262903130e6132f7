"""What is counted over the micro-batches of a run: tokens, floating-point operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from hexloop.domain.run import Run


@define
class TokenCounter:
    """Counts input tokens: all of them, or with `padding_aware` those that the attention mask lets through.

    The latter stay on the device until `settle` adds them to the state.
    """

    run: Run[Any, Any]
    main_input: str
    padding_aware: bool
    _pending: Any = field(default=0, init=False)

    def __call__(self, batch: Any) -> None:
        """Count one micro-batch."""
        tokens = batch.get(self.main_input)
        if tokens is None:
            return
        if self.padding_aware and batch.get("attention_mask") is not None:
            self._pending = self._pending + batch["attention_mask"].sum()
        else:
            self.run.state.tokens += tokens.numel()

    def settle(self) -> None:
        """Add what waits on the device to the state."""
        self.run.state.tokens += int(self._pending)
        self._pending = 0


@define
class OperationCounter:
    """Adds up the floating-point operations that `operations_in(batch)` estimates."""

    run: Run[Any, Any]
    operations_in: Callable[[Any], float]

    def __call__(self, batch: Any) -> None:
        """Count one micro-batch."""
        self.run.state.operations += float(self.operations_in(batch))


def operations_by_parameters(model: Any) -> Callable[[Any], float]:
    """6 operations a parameter and token, forward and backward (Kaplan et al. 2020, section 2.1), embeddings left out.

    For transformers' models, which know their parameters and main input; 0 for others.
    """
    if not hasattr(model, "num_parameters"):
        return lambda _batch: 0.0
    parameters = model.num_parameters(exclude_embeddings=True)
    main_input = getattr(model, "main_input_name", "input_ids")

    def operations(batch: Any) -> float:
        tokens = batch.get(main_input)
        return 0.0 if tokens is None else 6.0 * tokens.numel() * parameters

    return operations
