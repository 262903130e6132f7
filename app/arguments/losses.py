"""Arguments of the loss: which one it is, how it is computed, and what is logged beside it."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from hexloop.app.arguments.conversion import one_of
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, declaring_class, rule
from hexloop.domain.wording import RefusalError

NLL, CHUNKED, DFT = "nll", "chunked_nll", "dft"
"""The values of `loss_type`."""


@argument_group
class LossArguments(ArgumentGroup):
    """The loss of a language model.

    Args:
        chunked_loss: compute the loss, and its gradients, from the last hidden states over a few positions at a time,
            so that the logits of all positions never exist at once. The loss and the gradients are the same. For models
            that have an output layer (`get_output_embeddings`, or an attribute `lm_head`) and whose loss is the cross
            entropy of its logits. What else the model or a loss function does with the logits is an error.
        loss_type: `nll`, the cross entropy that the model computes; `chunked_nll`, the same with `chunked_loss`; `dft`,
            in which each label's negative log-likelihood is multiplied by the probability of the label, through which
            no gradient flows (dynamic fine-tuning, Wu et al. 2025), computed over a few positions at a time as well. If
            unset, the loss is the model's own. A subclass of `TrainingArguments` that declares a `loss_type` of its own
            gives it a meaning of its own.
        log_token_accuracy: log with the loss as `token_accuracy` which share of the labels were the most probable
            token.
    """

    chunked_loss: bool = argument(
        default=False, help="compute the loss over a few positions at a time, so that the logits never exist whole"
    )
    loss_type: str | None = argument(
        default=None,
        help="nll, chunked_nll (the same as chunked_loss) or dft (each label weighted by its probability); the model's "
        "own loss if unset",
    )
    log_token_accuracy: bool = argument(
        default=False, help="log which share of the labels were the most probable token, as token_accuracy"
    )

    @rule("loss_type")
    def _known_loss(self) -> None:
        if _has_own_loss_types(type(self)) and self.loss_type is not None:
            one_of(NLL, CHUNKED, DFT)(self.loss_type)

    @rule("loss_type", "label_smoothing_factor")
    def _one_loss_only(self) -> None:
        if loss_wanted(self).kind == DFT and getattr(self, "label_smoothing_factor", 0.0) > 0:
            raise RefusalError("each of them changes the loss of a label", "leave one of them out")

    @rule("reproduce", "log_token_accuracy")
    def _logs_that_can_be_reproduced(self) -> None:
        if getattr(self, "reproduce", None) is not None and self.log_token_accuracy:
            raise RefusalError("transformers logs the loss alone", "leave log_token_accuracy out")

    @rule("reproduce", "chunked_loss", "loss_type")
    def _loss_that_can_be_reproduced(self) -> None:
        if getattr(self, "reproduce", None) is not None and loss_wanted(self) != LossWanted():
            raise RefusalError("transformers computes the loss of the model", "leave chunked_loss and loss_type out")


def _has_own_loss_types(kind: type) -> bool:
    """Return whether `loss_type` is the argument declared here, and not another of a subclass."""
    return declaring_class(kind, "loss_type") is LossArguments


@frozen
class LossWanted:
    """The loss that the arguments choose. kind: `nll`, `dft`, or None for the model's own. chunked: in chunks."""

    kind: str | None = None
    chunked: bool = False


class ChoosingLoss(Protocol):
    """Arguments that choose a loss."""

    chunked_loss: bool
    loss_type: str | None


def loss_wanted(args: ChoosingLoss) -> LossWanted:
    """Return the loss that the arguments choose."""
    kind = args.loss_type if _has_own_loss_types(type(args)) else None
    if kind == CHUNKED:
        return LossWanted(NLL, chunked=True)
    return LossWanted(kind, chunked=args.chunked_loss)
