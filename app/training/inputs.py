"""What a batch is to the model: the names of its tensors, and which of them are labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from hexloop.app.training.columns import find_label_names, forward_parameters, returns_loss_unasked
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import DataError

LABELS = "labels"


@frozen
class NamedByPosition:
    """Gives the tensors of a tuple or list, or a single tensor, the names that forward has at their positions.

    labels_last: forward takes no labels, so that the last of several tensors is the labels of a loss function.
    """

    model_name: str
    names: Sequence[str]
    labels_last: bool

    def __call__(self, batch: Any) -> Any:
        """The batch as a mapping; one that is a mapping, or no tensors at all, as it is.

        Raises DataError where there are more tensors than names.
        """
        if isinstance(batch, Mapping) or not isinstance(batch, tuple | list | Tensor):
            return batch
        values = [batch] if isinstance(batch, Tensor) else list(batch)
        labels = {LABELS: values.pop()} if self.labels_last and len(values) > 1 else {}
        if len(values) > len(self.names):
            raise DataError(
                f"The batch holds {len(values)} tensors for forward, but that of {self.model_name} takes "
                f"{len(self.names)} by name ({', '.join(self.names) or 'none'}); let forward take them all, pass "
                "compute_loss_func for labels that are the last of them, or let data_collator return a dictionary."
            )
        return dict(zip(self.names, values, strict=False)) | labels


def needs_own_labels(model: Any, has_own_loss: bool) -> bool:
    """Return whether the loss is computed from labels that the model's forward does not take.

    has_own_loss: whether something else than the model computes the loss.
    """
    return has_own_loss and not find_label_names(model)


def named_by_position(parts: TrainerParts) -> NamedByPosition:
    """What names the tensors of a batch as the model's forward does."""
    parameters = forward_parameters(parts.model).values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return NamedByPosition(type(parts.model).__name__, names, needs_own_labels(parts.model, _has_own_loss(parts)))


def named_on(parts: TrainerParts, transfer: Callable[[Any], Any], takes_any_batch: bool) -> Callable[[Any], Any]:
    """`transfer`, which also names the tensors of a batch, unless a method of the user's `takes_any_batch`."""
    if takes_any_batch:
        return transfer
    named = named_by_position(parts)
    return lambda batch: named(transfer(batch))


def default_label_names(model: Any, has_own_loss: bool) -> list[str]:
    """Return the inputs that are labels if the arguments do not name them: those of forward, or of a separate loss."""
    names = find_label_names(model)
    if not names and needs_own_labels(model, has_own_loss) and not returns_loss_unasked(model):
        return [LABELS]
    return names


def _has_own_loss(parts: TrainerParts) -> bool:
    smoothed = bool(parts.args.label_smoothing_factor)
    return parts.compute_loss_func is not None or smoothed or parts.hooks.compute_loss.overridden
