"""A framework of plain Python lists, assembled for the Trainer: a linear model that is fitted by least squares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from hexloop.adapters.batches import InMemoryBatches
from hexloop.adapters.device.simulated import SimulatedDevice
from hexloop.adapters.evaluator import LeastSquaresEvaluator
from hexloop.adapters.losses import PlainLosses, PlainWindowValues
from hexloop.adapters.scheduler import ScheduledRates
from hexloop.adapters.snapshots import InMemorySnapshots
from hexloop.adapters.trainable.least_squares import LeastSquares, LinearModel, MomentumOptimizer, Row
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.framework import Framework
from hexloop.app.assembly.learner import AlwaysInTraining, RunLearner, WindowState
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.sharing import data_seed
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.loop import StandardLearner
from hexloop.domain.order import KeyedPermutation
from hexloop.domain.run import windows
from hexloop.domain.schedules import shape_named
from hexloop.ports.device import Device
from hexloop.ports.state import Part


class Momentum(MomentumOptimizer):
    """The optimizer, with the parameter group that the schedule and the checkpoints read."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The only group."""
        return [{"params": [self._model], "lr": self.rates[0], "momentum": self.momentum}]


@frozen
class Loader:
    """The batches of a data set. Its length is that of an epoch."""

    dataset: Sequence[Row]
    batches: InMemoryBatches[Row]

    def __len__(self) -> int:
        return self.batches.batches_per_epoch()


@frozen
class AllWeights:
    """What is saved of a model: all of it."""

    model: LinearModel
    has_adapters = has_files = False
    adapters: Mapping[str, Any] = {}

    def saved_as(self, args: Any) -> str:
        """Return no name: nothing but this framework reads such checkpoints."""
        return ""

    def gathers(self, args: Any) -> bool:
        """Return False: no model is sharded."""
        return False

    def base(self, parts: TrainerParts) -> None:
        """Return None: everything is saved."""

    def state(self, parts: TrainerParts) -> AllWeights:
        """Return what exports and loads the model: this object."""
        return self

    def export(self) -> Iterator[Part]:
        """Export the weights."""
        return self.model.export()

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported weights."""
        self.model.load(parts)

    def differences(self, parts: Sequence[Part], types: bool = True) -> list[str]:
        """Return how exported weights differ in names and shapes."""
        own = {part.name: part.shape for part in self.export()}
        other = {part.name: part.shape for part in parts}
        return [] if own == other else [f"weights of {other}, and those of this model are {own}"]

    def write(self, parts: TrainerParts, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the weights as JSON."""
        Path(folder, "line.json").write_text(json.dumps(self.model.parameters))

    def write_beside(self, parts: TrainerParts, folder: str) -> None:
        """No-op."""

    def published(self, paths: Sequence[str]) -> list[str]:
        """Return all files."""
        return list(paths)

    def complete_card(self, folder: str, library: str | None) -> None:
        """No-op."""


class Lists(Framework[TrainerParts]):
    """Lists of floats as the framework of a run."""

    model_kind = "a LinearModel"

    def device(self, args: TrainingArguments) -> Device:
        """Return a device without hardware."""
        return SimulatedDevice("cpu")

    def place(self, model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
        """Return the model as it is. Raises ConfigurationError for activation checkpointing, as it has no layers."""
        if args.activation_checkpointing:
            raise ConfigurationError("activation_checkpointing=True needs layers, which a line does not have.")
        return model

    def parameter_counts(self, parts: TrainerParts) -> tuple[int, int]:
        """Return the number of weights, all of which are trained."""
        return len(parts.model.parameters), len(parts.model.parameters)

    def weights(self, model: Any) -> AllWeights:
        """Save all weights."""
        return AllWeights(model)

    def loader(
        self,
        parts: TrainerParts,
        dataset: Any,
        batch_size: int,
        sampler_method: Callable[..., Any] | None,
        trains: bool,
        collate: Callable[[list[Any]], Any] | None,
    ) -> Any:
        """Return batches in hexloop's order for training, and in the order of the rows for evaluation."""

        def order(epoch: int) -> KeyedPermutation:
            return KeyedPermutation(data_seed(parts.args), epoch, len(dataset))

        return Loader(dataset, InMemoryBatches(dataset, batch_size, order if trains else None))

    def batches(self, parts: TrainerParts, loader: Any, transfer: Any, inspect: Any) -> Any:
        """Return the batches of the loader."""
        return loader.batches

    def choose_optimizer(self, args: TrainingArguments, model: Any = None) -> tuple[type[Any], dict[str, Any]]:
        """Return SGD with momentum. Raises ConfigurationError if the arguments name another optimizer, or a decay."""
        if str(getattr(args.optim, "value", args.optim)) != "sgd" or args.weight_decay:
            raise ConfigurationError(
                f"optim={args.optim!s} with weight_decay={args.weight_decay} is not there; use sgd."
            )
        return Momentum, {"learning_rate": args.learning_rate}

    def build_optimizer(
        self,
        model: Any,
        optimizer_class: type[Any],
        options: Mapping[str, Any],
        decayed: list[str],
        weight_decay: float,
        keeps_empty: bool = False,
    ) -> Any:
        """Return the optimizer; nothing is decayed."""
        return optimizer_class(model, **options)

    def schedule(self, args: TrainingArguments, optimizer: Any, total_steps: int) -> Any:
        """Return the schedule that the arguments name."""
        base = (args.learning_rate,)
        return ScheduledRates(
            shape_named(args, total_steps), base, lambda rates: optimizer.rates.__setitem__(0, *rates)
        )

    def scheduler(self, parts: TrainerParts, learner: RunLearner) -> Any:
        """Return the schedule: it is an adapter."""
        return parts.lr_scheduler

    def learner(self, parts: TrainerParts, wrapped: Any, after: Callable[[], None]) -> RunLearner:
        """Return the domain's learner over the model."""
        trainable = LeastSquares(wrapped, parts.optimizer)
        adapters = parts.adapters
        standard = StandardLearner(trainable, adapters.precision, adapters.parallelism, lambda: None, after)
        return RunLearner(
            standard, standard, windows, WindowState(), AlwaysInTraining(), trainable, trainable.count_items
        )

    def losses(self, parts: TrainerParts) -> PlainLosses:
        """Return a sum of floats."""
        return PlainLosses()

    def window_values(self, parts: TrainerParts) -> PlainWindowValues:
        """Return a list of floats."""
        return PlainWindowValues()

    def evaluator(
        self,
        parts: TrainerParts,
        loader: Any,
        loss_only: bool | None,
        ignore_keys: list[str] | None,
        prefix: str,
        keep: bool,
    ) -> LeastSquaresEvaluator:
        """Return the mean squared error and the largest error."""
        return LeastSquaresEvaluator(parts.model, loader.dataset, parts.args.eval_batch_size, f"{prefix}_")

    def optimizer_state(self, parts: TrainerParts) -> Any:
        """Return the optimizer, which exports itself."""
        return parts.optimizer

    def snapshots(self, parts: TrainerParts) -> InMemorySnapshots:
        """Return snapshots of bytes."""
        return InMemorySnapshots()
