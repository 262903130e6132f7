"""What a batch is to the model: the names of its tensors, and which of them are labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen
from torch import Tensor

from hexloop.app.training.columns import find_label_names, forward_parameters, returns_loss_unasked
from hexloop.app.training.hooks import is_overridden
from hexloop.domain.errors import DataError

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

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


def needs_labels_of_its_own(trainer: Trainer) -> bool:
    """Whether the loss is computed from labels that the model's forward does not take."""
    own = trainer.compute_loss_func is not None or bool(trainer.args.label_smoothing_factor)
    return (own or is_overridden(trainer, "compute_loss")) and not find_label_names(trainer.model)


def named_by_position(trainer: Trainer) -> NamedByPosition:
    """What names the tensors of a batch as the model's forward does."""
    parameters = forward_parameters(trainer.model).values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return NamedByPosition(type(trainer.model).__name__, names, needs_labels_of_its_own(trainer))


def named_on(trainer: Trainer, transfer: Callable[[Any], Any], takes_any_batch: bool) -> Callable[[Any], Any]:
    """`transfer`, which also names the tensors of a batch, unless a method of the user's `takes_any_batch`."""
    if takes_any_batch:
        return transfer
    named = named_by_position(trainer)
    return lambda batch: named(transfer(batch))


def default_label_names(trainer: Trainer) -> list[str]:
    """The inputs that are labels where the arguments do not say: what forward takes as such, or a loss of its own."""
    names = find_label_names(trainer.model)
    if not names and needs_labels_of_its_own(trainer) and not returns_loss_unasked(trainer.model):
        return [LABELS]
    return names
