"""The evaluation of a torch module on a loader."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from hexloop.adapters.evaluator.torch.arrays import Array, FileArrays, MemoryArrays
from hexloop.adapters.evaluator.torch.gathering import RankGatherer, SingleRank
from hexloop.adapters.evaluator.torch.predictions import (
    BatchCollector,
    Collector,
    EvalPrediction,
    JoinedCollector,
    map_tensors,
    plain,
)
from hexloop.domain.errors import ConfigurationError, DataError
from hexloop.ports.batches import Padding

Predict = Callable[..., tuple[Tensor | None, Any, Any]]
"""(model, inputs, prediction_loss_only, ignore_keys=...) -> loss, logits, labels."""


@frozen
class PredictionStep:
    """Predicts one batch without gradients.

    compute_loss: from (model, inputs, return_outputs) to the loss, or to (loss, outputs).
    wrap: makes a forward pass run in the run's precision.
    label_names: the inputs that are labels. ignored: outputs that are not predictions, unless a call names others.
    loss_without_labels: there is a loss although the batch has no labels; the batch's `return_loss` overrides this.
    without_logits: inputs that are added to a batch with names if only its loss is asked for. complete: makes of the
    outputs of a model those whose predictions are asked for.
    """

    compute_loss: Callable[..., Any]
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    label_names: Sequence[str] = ("labels",)
    ignored: Sequence[str] = ()
    loss_without_labels: bool = False
    without_logits: Mapping[str, Any] = {}
    complete: Callable[[Any], Any] = lambda outputs: outputs

    def __call__(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Sequence[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the mean loss, the logits and the labels of the batch, each None if missing or not asked for.

        Logits or labels that are a single tensor are returned as such, several as a tuple.
        """
        ignored = self.ignored if ignore_keys is None else ignore_keys
        labels = self._labels(inputs)
        loss: Tensor | None = None
        with torch.no_grad():
            if labels is not None:
                if prediction_loss_only and self.without_logits and isinstance(inputs, Mapping):
                    inputs = {**inputs, **self.without_logits}
                computed, outputs = self.wrap(self.compute_loss)(model, inputs, return_outputs=True)
                loss = computed.detach()
                loss = loss.mean() if loss.ndim else loss
                outputs = outputs if prediction_loss_only else self.complete(outputs)
                logits = _predictions(outputs, {*ignored, "loss"}, skip_first=True)
            else:
                logits = _predictions(_forward(self.wrap(model), inputs), set(ignored), skip_first=False)
        if prediction_loss_only:
            return loss, None, None
        logits = map_tensors(Tensor.detach, logits)
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def _labels(self, inputs: Any) -> Any:
        """Return the labels (of unnamed tensors the last); None if one is missing, so that there is no loss either."""
        if not isinstance(inputs, Mapping):
            has_labels = isinstance(inputs, tuple | list) and len(inputs) > 1
            return map_tensors(Tensor.detach, inputs[-1]) if has_labels else None
        found = tuple(inputs.get(name) for name in self.label_names)
        if not found or (self.loss_without_labels and all(value is None for value in found)):
            asked = inputs.get("return_loss")
            return () if (self.loss_without_labels if asked is None else asked) else None
        if any(value is None for value in found):
            return None
        labels = map_tensors(Tensor.detach, found)
        return labels[0] if len(labels) == 1 else labels


def _forward(model: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _predictions(outputs: Any, ignored: set[str], skip_first: bool) -> tuple[Any, ...]:
    """Return the model's outputs except its loss, in order. `skip_first`: the first element of a tuple is the loss."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    if isinstance(outputs, tuple | list):
        return tuple(outputs[1:] if skip_first else outputs)
    named = outputs if isinstance(outputs, Mapping) else vars(outputs)
    return tuple(value for name, value in named.items() if name not in ignored)


# The evaluator


@define
class Modes:
    """Puts a model in evaluation mode, and its modules back in the modes that they had before.

    Several evaluations may follow each other before `restore`: it restores the modes from before the first.
    """

    _before: list[tuple[nn.Module, bool]] = field(factory=list, init=False)

    def enter_evaluation(self, model: nn.Module) -> None:
        """Put the model in evaluation mode, and keep the modes of its modules if it was in training mode."""
        if model.training:
            self._before = [(module, module.training) for module in model.modules()]
        model.eval()

    def restore(self) -> None:
        """Put each module back in its mode. No-op if the model was not in training mode."""
        before, self._before = self._before, []
        if before:
            before[0][0].train()  # a module may override train()
        for module, training in before:
            module.training = training


class BatchLosses:
    """The mean loss of each batch, weighted by a number of rows, or of the items that it is the mean of."""

    def __init__(self) -> None:
        self._losses, self._items = JoinedCollector(), JoinedCollector()
        self._rows = array("q")
        self._by_items = False

    def __bool__(self) -> bool:
        return len(self._rows) > 0

    def add(self, loss: Tensor, rows: int, items: Any = None) -> None:
        """Add a batch's mean loss over so many items, without moving either. None: it is a mean over its rows."""
        self._losses.add(loss, 0)
        self._rows.append(rows)
        if items is not None:
            self._by_items = True
            self._items.add(items, 0)

    def to_host(self) -> None:
        """Move to the host what is still on the device."""
        self._losses.to_host()
        self._items.to_host()

    def by_row(self) -> Array:
        """Return the loss of each row's batch, of shape (samples,)."""
        return np.repeat(self._by_batch, self._rows)

    def in_batches(self) -> list[Array]:
        """Return the same as `by_row`, with one array per batch."""
        return [np.repeat(loss, rows) for loss, rows in zip(self._by_batch, self._rows, strict=True)]

    def mean(self, finite_only: bool) -> float:
        """Return the mean over all rows, or all items; with `finite_only` over those with a finite loss, if any.

        The loss of a batch without items is a mean of nothing, and is left out. If all rows have as many items, both
        means are the same, and that over rows is bit-identical to transformers'.
        """
        if self._by_items:
            items, rows = np.asarray(self._items.result(), dtype=np.float64), np.asarray(self._rows)
            if not items.all() or (items * rows[0] != items[0] * rows).any():
                return self._mean_over_items(items, finite_only)
        losses = self.by_row()
        finite = np.isfinite(losses)
        if finite_only and finite.any():
            losses = losses[finite]
        return float(losses.mean())

    def _mean_over_items(self, items: Array, finite_only: bool) -> float:
        losses, items = self._by_batch[items > 0].astype(np.float64), items[items > 0]
        finite = np.isfinite(losses)
        if finite_only and finite.any():
            losses, items = losses[finite], items[finite]
        return float(np.average(losses, weights=items)) if len(items) else math.nan

    @cached_property
    def _by_batch(self) -> Array:
        found: Array = self._losses.result()
        return found


@define
class EvaluationOptions:
    """What an evaluation computes and keeps.

    prefix: prepended to the name of every metric. loss_only: keep no predictions. ignore_keys: outputs to leave out.
    accumulation_steps: batches after which predictions are moved to the host (None: when there are many).
    concatenate: pass whole arrays to the metrics instead of lists of batches. by_batch: compute the metrics for each
    batch, with `compute_result` True for the last, and keep nothing unless `keep` is set. include: "inputs" and "loss"
    are passed to the metrics too. filter_nan: ignore losses that are not finite in the mean. main_input: the name of
    the input that "inputs" refers to. dtype: cast the model to this type first; not allowed during training.
    expected_rows: the number of samples; 0 if unknown. folder: where predictions are kept in mapped files; in memory if
    None. preparation_seconds: the time it took to prepare the model, reported as a metric if not None.
    label_names: the inputs that are labels, for messages. warn: receives why an evaluation has no result.
    items_in: is called with a batch before its prediction, and what it returns afterwards: it returns the number of
    items that the batch's loss is the mean of, on the device. None if the mean over all data weights batches by their
    rows. of_tokens: the loss is the mean negative log-likelihood of tokens, whose
    exponential, the perplexity, is a metric as well.
    """

    prefix: str = "eval"
    loss_only: bool = False
    ignore_keys: Sequence[str] | None = None
    accumulation_steps: int | None = None
    concatenate: bool = True
    by_batch: bool = False
    keep: bool = False
    include: Sequence[str] = ()
    filter_nan: bool = True
    main_input: str = "input_ids"
    dtype: torch.dtype | None = None
    expected_rows: int = 0
    folder: str | None = None
    preparation_seconds: float | None = None
    label_names: Sequence[str] = ()
    warn: Callable[[str], None] = lambda _message: None
    items_in: Callable[[Any], Callable[[], Any]] | None = None
    of_tokens: bool = False

    def collector(self) -> Collector:
        """Return a collector of predictions."""
        if not self.concatenate:
            return BatchCollector()
        store = MemoryArrays() if self.folder is None else FileArrays(self.folder)
        return JoinedCollector(store, self.expected_rows, waits=self.accumulation_steps is not None)


LARGEST_EXPONENT = 709.0
"""The exponential of a greater number may be too large for a float."""


class Weights(Protocol):
    """Weights that are evaluated in place of those in the model."""

    def show(self) -> None:
        """Put them into the model."""

    def hide(self) -> None:
        """Take them out of it."""


@define
class TorchEvaluator:
    """Implements the Evaluator port. After `metrics`, `predictions`, `label_ids` and `samples` can be read.

    modes: keeps the modes that the modules had before; the caller restores them before the next training step. If
    None, `end` restores them. weights: those that are evaluated in place of the model's own, if not None.
    """

    model: nn.Module
    loader: Iterable[Any]
    predict: Predict
    transfer: Callable[[Any], Any]
    count_rows: Callable[[Any], int]
    compute_metrics: Callable[..., dict[str, Any]] | None = None
    preprocess_logits: Callable[[Any, Any], Any] = lambda logits, _labels: logits
    options: EvaluationOptions = field(factory=EvaluationOptions)
    ranks: RankGatherer = field(factory=SingleRank)
    modes: Modes | None = None
    weights: Weights | None = None
    samples: int = field(default=0, init=False)
    predictions: Any = field(default=None, init=False)
    label_ids: Any = field(default=None, init=False)
    _own_modes: Modes = field(factory=Modes, init=False)
    _losses: BatchLosses = field(factory=BatchLosses, init=False)
    _logits: Collector = field(init=False)
    _labels: Collector = field(init=False)
    _inputs: Collector = field(init=False)
    _held: EvalPrediction | None = field(default=None, init=False)
    _batches: int = field(default=0, init=False)
    _has_measured: bool = field(default=False, init=False)
    _input_names: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._reset()

    def batches(self) -> Generator[Any, None, None]:
        """Yield the loader's batches, on the device. Raises an error if another rank has fewer batches, or fails."""
        try:
            yield from map(self.transfer, self.loader)
        except Exception as error:
            self.ranks.fail(error)
            raise
        self.ranks.finish()

    def begin(self) -> None:
        """Put the model in evaluation mode, and cast it if `options.dtype` is set."""
        if self.options.dtype is not None:
            self.model.to(dtype=self.options.dtype)
        (self.modes or self._own_modes).enter_evaluation(self.model)
        self._reset()
        if self.weights is not None:
            self.weights.show()

    def step(self, batch: Any) -> int:
        """Predict this rank's part of a batch, and return the rows of all ranks. If one fails, all raise an error."""
        try:
            return self._step(batch)
        except Exception as error:
            self.ranks.fail(error)
            raise

    def _step(self, batch: Any) -> int:
        options = self.options
        if self._batches == 0:
            if batch is None or (isinstance(batch, Mapping) and not batch):
                raise DataError(
                    f"The data_collator returned {'None' if batch is None else 'an empty batch'}; let it return a "
                    "dictionary of tensors, and check that the model takes the columns of the data."
                )
            self._input_names = list(map(str, batch)) if isinstance(batch, Mapping) else []
        rows = 0 if isinstance(batch, Padding) else self.count_rows(batch)
        counted = None if options.items_in is None else options.items_in(batch)
        loss, logits, labels = self.predict(self.model, batch, options.loss_only, ignore_keys=options.ignore_keys)
        if logits is not None:
            logits = self.preprocess_logits(logits, labels)
        items = None if counted is None else counted()
        parts = self.ranks.parts((logits, labels, self._inputs_of(batch), items), rows, loss)
        weights = self.ranks.loss_weights([count for _, count, _ in parts])
        for ((logits, labels, inputs, items), count, each), weight in zip(parts, weights, strict=True):
            if each is not None and weight:
                self._losses.add(each, weight, items)
            if count or len(parts) == 1:
                self._take(logits, labels, inputs, each, count)
        rows = sum(count for _, count, _ in parts)
        self.samples += rows
        self._batches += 1
        if options.accumulation_steps and self._batches % options.accumulation_steps == 0:
            for kept in (self._losses, self._logits, self._labels, self._inputs):
                kept.to_host()
        return rows

    def metrics(self) -> dict[str, Any]:
        """Return the user's metrics and the mean loss over all samples, all with the prefix. Call it once."""
        self.predictions, self.label_ids = self._logits.result(), self._labels.result()
        measured = self._compute_held(last=True) if self.options.by_batch else self._compute()
        if not self.options.keep and (reason := self._why_nothing()):
            self.options.warn(reason)
        if not isinstance(measured, dict):
            raise ConfigurationError(
                f"compute_metrics returned {type(measured).__name__}, but it must return a dictionary from names to "
                "numbers."
            )
        named = {name: plain(value) for name, value in measured.items()}
        prefix = f"{self.options.prefix}_"
        if self._losses:
            named[f"{prefix}loss"] = loss = self._losses.mean(self.options.filter_nan)
            if self.options.of_tokens:
                named.setdefault(f"{prefix}perplexity", math.exp(loss) if loss < LARGEST_EXPONENT else math.inf)
        if self.options.preparation_seconds is not None:
            named[f"{prefix}model_preparation_time"] = self.options.preparation_seconds
        prefixed = {name: value for name, value in named.items() if name.startswith(prefix)}
        return prefixed | {f"{prefix}{name}": value for name, value in named.items() if name not in prefixed}

    def _why_nothing(self) -> str:
        """Return why there is neither a loss nor a metric, or no metric although it was asked for; empty otherwise."""
        name, asks = f"{self.options.prefix}_loss", self.compute_metrics is not None and not self.options.loss_only
        if (self._losses or self._has_measured) and (self._has_measured or not asks):
            return ""
        lost = " and ".join([f"no {name}"] * (not self._losses) + ["no result of compute_metrics"] * asks)
        if self._batches == 0:
            return (
                f"The evaluation has {lost}: its data yielded no batches. Data that can be read only once, such as a "
                "generator, are empty at their second evaluation; let __iter__ start over, or pass a data set with "
                "rows."
            )
        absent = [each for each in self.options.label_names if each not in self._input_names]
        if self._input_names and (absent or not self.options.label_names):
            wanted = ", ".join(absent) or "labels"
            return (
                f"The evaluation has {lost}: the batches lack {wanted}, and have {', '.join(self._input_names)}. "
                "Rename the column of the labels, or set label_names to the names that they have."
            )
        return f"The evaluation has {lost}: the prediction step returned no loss, or no predictions and labels."

    def end(self) -> None:
        """Put every module back in the mode that it was in, unless the caller does that, and the weights back."""
        if self.weights is not None:
            self.weights.hide()
        self._own_modes.restore()

    def _reset(self) -> None:
        self.samples = self._batches = 0
        self._has_measured, self._input_names = False, []
        self.predictions = self.label_ids = self._held = None
        self._losses = BatchLosses()
        self._logits, self._labels, self._inputs = (self.options.collector() for _ in range(3))

    def _inputs_of(self, batch: Any) -> Any:
        """Return the inputs that the metrics get."""
        if "inputs" not in self.options.include:
            return None
        if self.options.by_batch:
            return batch
        return batch.get(self.options.main_input) if isinstance(batch, Mapping) else None

    def _take(self, logits: Any, labels: Any, inputs: Any, loss: Tensor | None, rows: int) -> None:
        """Add what one rank has of a batch besides its loss."""
        if self.options.by_batch:
            self._measure(inputs, loss, logits, labels, rows)
            inputs = inputs.get(self.options.main_input) if isinstance(inputs, Mapping) else inputs
        if self.options.keep or not self.options.by_batch:
            for collector, value in ((self._logits, logits), (self._labels, labels), (self._inputs, inputs)):
                if value is not None:
                    collector.add(value, rows)

    def _measure(self, inputs: Any, loss: Tensor | None, logits: Any, labels: Any, rows: int) -> None:
        """Compute the metrics of the previous batch, which was not the last, and hold this one."""
        if self.compute_metrics is None or logits is None or labels is None:
            return
        self._compute_held(last=False)
        by_row = None
        if "loss" in self.options.include and loss is not None:
            by_row = loss.reshape(1).repeat(max(rows, 1))
        self._held = EvalPrediction(logits, labels, inputs, by_row)

    def _compute_held(self, last: bool) -> object:
        held, self._held = self._held, None
        self._has_measured |= held is not None
        return {} if held is None or self.compute_metrics is None else self.compute_metrics(held, compute_result=last)

    def _compute(self) -> object:
        if self.compute_metrics is None or self.predictions is None or self.label_ids is None:
            return {}
        losses: Any = None
        if "loss" in self.options.include and self._losses:
            losses = self._losses.by_row() if self.options.concatenate else self._losses.in_batches()
        found = EvalPrediction(self.predictions, self.label_ids, self._inputs.result(), losses)
        self._has_measured = True
        return self.compute_metrics(found)
