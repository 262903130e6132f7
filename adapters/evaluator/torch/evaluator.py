"""The evaluation of a torch module on a loader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import Tensor, nn

from hexloop.adapters.evaluator.torch.outputs import EvalPrediction
from hexloop.adapters.evaluator.torch.predictions import Collected, to_arrays

Predict = Callable[..., tuple[Tensor | None, Any, Any]]
"""(model, inputs, prediction_loss_only, ignore_keys=...) -> loss, logits, labels."""


@define
class EvaluationOptions:
    """What is computed and kept.

    prefix: before the name of every metric. loss_only: keep no predictions. ignore_keys: outputs to leave out.
    accumulation_steps: batches after which predictions leave the device (None: at the end).
    concatenate: give the metrics whole arrays and not lists of batches. by_batch: call them for each batch, with
    `compute_result` True for the last. include: "inputs" and "loss" go to the metrics as well. filter_nan: leave losses
    that are not finite out of the mean. main_input: the name of the inputs that "inputs" means.
    dtype: cast the model to this type for the evaluation, which must not happen in training.
    """

    prefix: str = "eval"
    loss_only: bool = False
    ignore_keys: Sequence[str] | None = None
    accumulation_steps: int | None = None
    concatenate: bool = True
    by_batch: bool = False
    include: Sequence[str] = ()
    filter_nan: bool = True
    main_input: str = "input_ids"
    dtype: torch.dtype | None = None


def _as_they_are(logits: Any, labels: Any) -> Any:
    return logits


@define
class TorchEvaluator:
    """Answers the Evaluator port; `predictions`, `label_ids` and `samples` can be read after the last step."""

    model: nn.Module
    loader: Iterable[Any]
    predict: Predict
    transfer: Callable[[Any], Any]
    count_rows: Callable[[Any], int]
    compute_metrics: Callable[..., dict[str, Any]] | None = None
    preprocess_logits: Callable[[Any, Any], Any] = _as_they_are
    options: EvaluationOptions = field(factory=EvaluationOptions)
    samples: int = field(default=0, init=False)
    predictions: Any = field(default=None, init=False)
    label_ids: Any = field(default=None, init=False)
    _was_training: bool = field(default=False, init=False)
    _losses: list[tuple[Tensor, int]] = field(factory=list, init=False)
    _logits: Collected = field(factory=Collected, init=False)
    _labels: Collected = field(factory=Collected, init=False)
    _inputs: Collected = field(factory=Collected, init=False)
    _held: EvalPrediction | None = field(default=None, init=False)
    _batches: int = field(default=0, init=False)

    def batches(self) -> Generator[Any, None, None]:
        """The loader's batches, on the device."""
        yield from map(self.transfer, self.loader)

    def begin(self) -> None:
        """Switch dropout and the like off, and cast where asked to."""
        self._was_training = self.model.training
        if self.options.dtype is not None:
            self.model.to(dtype=self.options.dtype)
        self.model.eval()
        self.samples = self._batches = 0
        self._losses, self._held = [], None
        self._logits, self._labels, self._inputs = Collected(), Collected(), Collected()

    def step(self, batch: Any) -> int:
        """Predict one batch."""
        options = self.options
        rows = self.count_rows(batch)
        loss, logits, labels = self.predict(self.model, batch, options.loss_only, ignore_keys=options.ignore_keys)
        if loss is not None:
            self._losses.append((loss, rows))
        if logits is not None:
            logits = self.preprocess_logits(logits, labels)
        inputs = batch.get(options.main_input) if "inputs" in options.include else None
        if options.by_batch and self.compute_metrics is not None:
            self._compute_held(last=False)
            self._held = self._prediction(logits, labels, inputs, loss)
        else:
            self._keep(logits, labels, inputs)
        self.samples += rows
        self._batches += 1
        return rows

    def metrics(self) -> dict[str, float]:
        """The user's metrics, then the mean loss over all samples, all under the prefix."""
        self.predictions = self._logits.arrays(self.options.concatenate)
        self.label_ids = self._labels.arrays(self.options.concatenate)
        measured: dict[str, Any] = {}
        if self._held is not None:
            measured = self._compute_held(last=True)
        elif self.compute_metrics is not None and self.predictions is not None and self.label_ids is not None:
            inputs = self._inputs.arrays(self.options.concatenate)
            losses = self._loss_array() if "loss" in self.options.include else None
            measured = self.compute_metrics(EvalPrediction(self.predictions, self.label_ids, inputs, losses))
        named = {self._named(name): _number(value) for name, value in measured.items()}
        if self._losses:
            named[f"{self.options.prefix}_loss"] = self._mean_loss()
        return named

    def end(self) -> None:
        """Switch dropout and the like on again, where they were."""
        if self._was_training:
            self.model.train()

    def _keep(self, logits: Any, labels: Any, inputs: Any) -> None:
        for collected, values in ((self._logits, logits), (self._labels, labels), (self._inputs, inputs)):
            if values is not None:
                collected.add(values)
                if self.options.accumulation_steps and (self._batches + 1) % self.options.accumulation_steps == 0:
                    collected.to_host()

    def _prediction(self, logits: Any, labels: Any, inputs: Any, loss: Tensor | None) -> EvalPrediction:
        return EvalPrediction(logits, labels, inputs, loss if "loss" in self.options.include else None)

    def _compute_held(self, last: bool) -> dict[str, Any]:
        if self._held is None or self.compute_metrics is None:
            return {}
        return self.compute_metrics(self._held, compute_result=last) or {}

    def _loss_array(self) -> Any:
        return np.concatenate([np.repeat(to_arrays(loss), max(rows, 1)) for loss, rows in self._losses])

    def _mean_loss(self) -> float:
        losses = self._loss_array()
        finite = np.isfinite(losses)
        if self.options.filter_nan and finite.any():
            losses = losses[finite]
        return float(losses.mean())

    def _named(self, name: str) -> str:
        return name if name.startswith(f"{self.options.prefix}_") else f"{self.options.prefix}_{name}"


def _number(value: Any) -> Any:
    """Plain numbers and lists for scalars and arrays of numpy and torch."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic | np.ndarray):
        return value.item() if value.size == 1 else value.tolist()
    return value
