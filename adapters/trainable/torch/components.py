"""What a loss is made of: scalars that a model returns beside it, which are logged with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hexloop.adapters.trainable.torch.chunked_loss import TokenCounts
from hexloop.adapters.trainable.torch.pending_logits import PendingLogits
from hexloop.domain.errors import DataError
from hexloop.ports.batches import IGNORED_LABEL

LOSS_DICT = "loss_dict"
"""The entry of a model's outputs whose scalars are all logged."""

ACCURACY = "token_accuracy"
"""The name under which the accuracy of tokens is logged."""

TAKEN = frozenset(
    {
        *("loss", "grad_norm", "learning_rate", "epoch", "step", "nonfinite_steps", "goodput", "mfu", "total_flos"),
        *("num_input_tokens_seen", "train_loss", "train_runtime", ACCURACY),
    }
)
"""Names that logs use for something else."""

TAKEN_BEGINNINGS = ("eval_", "test_", "train_", "badput_", "_")
"""What names of logs begin with that mean something else."""

MOST = 64
"""How many components a loss has at most."""


def is_free(name: object) -> bool:
    """Return whether a component can be logged under a name, and nothing else is."""
    return (
        isinstance(name, str) and 0 < len(name) <= 100 and name not in TAKEN and not name.startswith(TAKEN_BEGINNINGS)
    )


class LossComponents:
    """The scalars that a model returns beside its loss in a training step.

    Those of outputs whose names contain "loss", and all of the output `loss_dict`, are found by themselves. They are
    shares of the loss of a window if the model divides its loss by the number of items that it is given (`as_shares`),
    and means over the batch otherwise, as the loss is.

    wanted: by name, the key of an output, or a function of the outputs and the inputs that returns the mean over the
    batch. shifted: labels are compared with the position before. accuracy: whether to measure which share of the
    labels is the most probable token. Loss functions that never have all logits measure it in `counts`.
    receive: is called with the name and the share of each component of each batch.
    """

    def __init__(
        self,
        wanted: Mapping[str, Callable[[Any, Any], Any] | str] | None = None,
        *,
        label_names: Sequence[str] = ("labels",),
        shifted: bool = False,
        accuracy: bool = False,
        as_shares: bool = False,
        counts: TokenCounts | None = None,
        warn: Callable[[str], None] = lambda _message: None,
    ) -> None:
        self.receive: Callable[[str, Tensor], None] = lambda _name, _share: None
        self.found: dict[str, tuple[Tensor, bool]] = {}
        self._wanted, self._label_names, self._shifted = dict(wanted or {}), label_names, shifted
        self._accuracy, self._as_shares, self._counts, self._warn = accuracy, as_shares, counts, warn
        self._names: dict[tuple[Any, ...], list[str]] = {}
        self._watches = False
        self._warned = self._warned_of_accuracy = False

    def begin(self) -> None:
        """Forget what was found, and look at the outputs that `see` receives from now on."""
        self.found = {}
        self._watches = True

    def see(self, outputs: Any, inputs: Any) -> None:
        """Find the components in the outputs of a model, if it was called for a training step."""
        if not self._watches:
            return
        named = _named(outputs)
        keys = tuple(named)
        names = self._names.get(keys)
        if names is None:
            if len(self._names) > MOST:
                self._names.clear()
            names = self._names[keys] = self._chosen(keys)
        for name in names:
            self._note(name, named[name])
        if LOSS_DICT in named and isinstance(named[LOSS_DICT], Mapping):
            for name in self._chosen(named[LOSS_DICT], every=True):
                self._note(name, named[LOSS_DICT][name])
        if self._wanted:
            self._find_wanted(outputs, named, inputs)
        if self._accuracy:
            self._measure(named, inputs)

    def hand_over(self, weigh: Callable[[Tensor], Tensor]) -> None:
        """Pass on what was found. weigh: from a mean over the batch to its share of the mean over the window."""
        for name, (value, is_share) in self.found.items():
            self.receive(name, value if is_share else weigh(value))
        self.end()

    def end(self) -> None:
        """Stop looking at outputs, and forget what was found."""
        self.found = {}
        self._watches = False

    def _chosen(self, keys: Iterable[Any], every: bool = False) -> list[str]:
        """Return the names of components among the keys of outputs; `every`: all keys are."""
        asked = [
            key for key in keys if isinstance(key, str) and (every or "loss" in key) and key not in ("loss", LOSS_DICT)
        ]
        free = [key for key in asked if is_free(key)]
        if len(free) < len(asked) and not self._warned:
            self._warned = True
            lost = ", ".join(sorted({*asked} - {*free}))
            self._warn(f"The model returns {lost} beside its loss, which is not logged: the name means something else.")
        return free[:MOST]

    def _note(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
            self.found[name] = value.detach().reshape(()), self._as_shares

    def _find_wanted(self, outputs: Any, named: Mapping[str, Any], inputs: Any) -> None:
        for name, wanted in self._wanted.items():
            if isinstance(wanted, str):
                if wanted not in named:
                    raise DataError(
                        f"log_loss_components[{name!r}] names the output {wanted!r}, but the model returns "
                        f"{', '.join(map(str, named)) or 'no named outputs'}; name one of these, or give a function "
                        "of the outputs."
                    )
                value, is_share = named[wanted], self._as_shares
            else:
                with torch.no_grad():
                    value, is_share = wanted(outputs, inputs), False
            if isinstance(value, int | float):
                value = torch.full((), float(value), device=_device_of(inputs))
            if not isinstance(value, Tensor) or value.numel() != 1:
                what = (
                    f"a tensor of shape {tuple(value.shape)}"
                    if isinstance(value, Tensor)
                    else f"a {type(value).__name__}"
                )
                raise DataError(f"log_loss_components[{name!r}] is {what}, and not a single number; return its mean.")
            self.found[name] = value.detach().reshape(()).to(torch.promote_types(value.dtype, torch.float32)), is_share

    def _measure(self, named: Mapping[str, Any], inputs: Any) -> None:
        """Note the accuracy of tokens, a mean over the batch; nan without labels."""
        logits = named.get("logits")
        if isinstance(logits, PendingLogits) or logits is None:
            counts = self._counts
            if counts is None or counts.labels is None or counts.correct is None:
                self._warn_of_no_accuracy()
                return
            self.found[ACCURACY] = counts.correct / counts.labels, False
            counts.labels = counts.correct = None
            return
        labels = next((inputs[name] for name in self._label_names if isinstance(inputs.get(name), Tensor)), None)
        if labels is None or logits.ndim != labels.ndim + 1 or logits.ndim < 3:
            self._warn_of_no_accuracy()
            return
        best = logits.detach().argmax(-1)
        if self._shifted:
            best, labels = best[..., :-1], labels[..., 1:]
        valid = labels != IGNORED_LABEL
        self.found[ACCURACY] = ((best == labels) & valid).sum() / valid.sum(), False

    def _warn_of_no_accuracy(self) -> None:
        if not self._warned_of_accuracy:
            self._warned_of_accuracy = True
            self._warn(
                "log_token_accuracy=True logs nothing: the model returns no logits of shape (rows, positions, "
                "classes), or the batch has no labels of the shape (rows, positions)."
            )


def _named(outputs: Any) -> Mapping[str, Any]:
    if isinstance(outputs, (dict, Mapping)):  # a dict first, because a question to an abstract class takes longer
        return outputs
    if isinstance(outputs, Tensor | tuple | list):
        return {}
    return getattr(outputs, "__dict__", {})


def _device_of(inputs: Any) -> Any:
    values = inputs.values() if isinstance(inputs, Mapping) else ()
    return next((each.device for each in values if isinstance(each, Tensor)), None)
