"""torch as the framework of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hexloop.adapters.batches.torch.loader import example_count, is_iterable
from hexloop.adapters.batches.torch.passes import KeptLoaders
from hexloop.adapters.batches.torch.random_streams import random_fingerprint
from hexloop.adapters.batches.torch.reproduction import import_before_seeding
from hexloop.adapters.batches.torch.structure import batch_fingerprint
from hexloop.adapters.trainable.torch.forward import default_label_names, returns_loss_by_default, takes_any_keyword
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.adapters.trainable.torch.optimizers import build_optimizer, decayed_names
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.framework import Framework, Observer, RunCounters, Sum
from hexloop.app.assembly.learner import RunLearner
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.random_state import Flag
from hexloop.app.assembly.torch import accelerator, batches, data, determinism, learner, losses, state, tensors
from hexloop.app.assembly.torch import model as models
from hexloop.app.assembly.torch.saved_weights import SavedWeights, saved_weights
from hexloop.app.assembly.torch.transfer import batch_preparation
from hexloop.app.rules import rules_of
from hexloop.domain.run import Run
from hexloop.ports.batches import Batches
from hexloop.ports.device import Device
from hexloop.ports.learner import Losses, Scheduler, WindowValues
from hexloop.ports.state import Exportable, Snapshots


class TorchFramework(Framework[TrainerParts]):
    """torch, with its data loaders, optimizers and schedules.

    `hexloop.app.overrides.framework` adds the learner and the evaluator, around which methods of the user's may stand.
    """

    # The model

    def place(self, model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
        """See `Framework.place`."""
        return models.place_model(model, args, device, moves)

    def weights(self, model: Any) -> SavedWeights:
        """See `Framework.weights`."""
        return saved_weights(model)

    def parameter_counts(self, parts: TrainerParts) -> tuple[int, int]:
        """See `Framework.parameter_counts`."""
        count, parameters = parts.adapters.engine.element_count, list(parts.unwrapped_model.parameters())
        return sum(map(count, parameters)), sum(count(each) for each in parameters if each.requires_grad)

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `Framework.named_parameters`."""
        named: Iterable[tuple[str, Any]] = model.named_parameters()
        return named

    def refuse_unprepared(self, adapters: Adapters, model: Any) -> None:
        """See `Framework.refuse_unprepared`."""
        state.refuse_unprepared(adapters, model)

    def unwrapped(self, model: Any) -> Any:
        """See `Framework.unwrapped`."""
        return unwrapped(model)

    def own_class(self, model: Any) -> type[Any]:
        """Return the model's class, without those that torch.distributed puts before it."""
        return state.own_class(model)

    def takes_item_count(self, model: Any) -> bool:
        """Return whether forward takes any keyword."""
        return takes_any_keyword(model)

    def returns_loss(self, model: Any) -> bool:
        """See `Framework.returns_loss`."""
        return returns_loss_by_default(model)

    def label_names(self, model: Any, has_own_loss: bool) -> list[str]:
        """See `Framework.label_names`."""
        return default_label_names(model, has_own_loss)

    def label_smoother(self, model: Any, args: TrainingArguments) -> Any:
        """See `Framework.label_smoother`."""
        return losses.smoother_for(model, args)

    def receive(self, model: Any, args: TrainingArguments) -> None:
        """Apply liger kernels."""
        models.apply_liger_kernels(model, args)

    def share(self, args: TrainingArguments, adapters: Adapters, model: Any, follow: Callable[[], None]) -> None:
        """Let accelerate's state and functions show the run."""
        accelerator.share_run(args, adapters, model, follow)

    def run_began(self, run: Run[Any, Any]) -> None:
        """Let accelerate's state show the signals of a run."""
        run.signals = accelerator.shown(run.signals)

    def run_ended(self, run: Run[Any, Any]) -> None:
        """Let accelerate's state no longer have the loader of a run as one that is read."""
        batches.end_pass(run.batches)

    def patched(
        self, model: Any, args: TrainingArguments, processing_class: Any
    ) -> AbstractContextManager[Sequence[Observer]]:
        """See `Framework.patched`."""
        return models.patched(model, args, processing_class)

    def kept_on_host(self, model: Any) -> Callable[[Any], None]:
        """See `Framework.kept_on_host`."""
        return tensors.kept_on_host(model)

    # The process

    def flags(self, args: TrainingArguments, device: Device) -> Sequence[Flag]:
        """Return the flags for TF32 and deterministic kernels."""
        return determinism.flags_for(args, device)

    def environment(self) -> dict[str, str]:
        """See `Framework.environment`."""
        return determinism.environment()

    def begin(self, args: TrainingArguments) -> None:
        """With `reproduce`, import what draws random numbers, and set what transformers sets for the whole process."""
        if not rules_of(args).own_order:
            import_before_seeding()
            if args.full_determinism:
                determinism.enable_full_determinism(args.seed)

    def random_fingerprint(self, device: str) -> str:
        """See `Framework.random_fingerprint`."""
        return random_fingerprint(device)

    # The data

    def loader(
        self,
        parts: TrainerParts,
        dataset: Any,
        batch_size: int,
        sampler_method: Callable[..., Any] | None,
        trains: bool,
        collate: Callable[[list[Any]], Any] | None,
    ) -> Any:
        """See `Framework.loader`."""
        return data.make_loader(parts, dataset, batch_size, sampler_method, trains, collate)

    def batches(
        self, parts: TrainerParts, loader: Any, prepared: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    ) -> Batches[Any]:
        """See `Framework.batches`."""
        transfer, inspect = batch_preparation(parts)
        return batches.training_data(parts, loader, prepared(transfer), inspect)

    def collator(self, processing_class: Any) -> Callable[[list[Any]], Any]:
        """See `Framework.collator`."""
        return data.default_collator(processing_class)

    def kept_loaders(self) -> KeptLoaders:
        """See `Framework.kept_loaders`."""
        return KeptLoaders()

    def stop_workers(self, loader: Any) -> None:
        """See `Framework.stop_workers`."""
        batches.stop_workers(loader)

    def sample_count(self, loader: Any) -> int | None:
        """See `Framework.sample_count`."""
        return example_count(loader)

    def batch_fingerprint(self, batch: Any) -> str | None:
        """See `Framework.batch_fingerprint`."""
        return batch_fingerprint(batch)

    def order_of(self, parts: TrainerParts, dataset: Any) -> Any:
        """See `Framework.order_of`."""
        chooses = parts.rules.own_order and not is_iterable(dataset) and hasattr(dataset, "__len__") and len(dataset)
        return data.training_order(parts, dataset, 0) if chooses else None

    # Training

    def choose_optimizer(self, args: TrainingArguments) -> tuple[type[Any], dict[str, Any]]:
        """See `Framework.choose_optimizer`."""
        return models.choose_optimizer(args)

    def build_optimizer(
        self, model: Any, kind: type[Any], options: dict[str, Any], decayed: list[str], decay: float, keeps_empty: bool
    ) -> Any:
        """See `Framework.build_optimizer`."""
        return build_optimizer(model, kind, options, decayed, decay, keeps_empty)

    def decayed_names(self, model: Any) -> list[str]:
        """Return the parameters that are no biases, and not of normalisation layers."""
        return decayed_names(model)

    def schedule(self, args: TrainingArguments, optimizer: Any, total_steps: int) -> Any:
        """Return a LambdaLR, ReduceLROnPlateau or GreedyLR."""
        return models.make_lr_scheduler(args, optimizer, total_steps)

    def scheduler(self, parts: TrainerParts, learner: RunLearner) -> Scheduler:
        """Return the adapter; a schedule of the user's may read the gradients."""
        standard = parts.lr_scheduler is parts.standard_scheduler
        made = models.scheduler_adapter(parts.lr_scheduler, parts.optimizer, parts.args, standard)
        models.let_schedule_read_gradients(learner.standard, made)
        return made

    def stretch(self, scheduler: Scheduler, args: TrainingArguments, total_steps: int, optimizer: Any) -> None:
        """See `Framework.stretch`."""
        models.stretch_schedule(scheduler, args, total_steps, optimizer)

    def compiled(self, model: Any, args: TrainingArguments) -> Any:
        """See `Framework.compiled`."""
        return models.compiled(model, args)

    def losses(self, parts: TrainerParts) -> Losses[Any]:
        """See `Framework.losses`."""
        return learner.make_losses(parts)

    def window_values(self, parts: TrainerParts) -> WindowValues[Any]:
        """See `Framework.window_values`."""
        return learner.make_window_values(parts)

    def counters(
        self, parts: TrainerParts, run: Run[Any, Any], learner: RunLearner, total: Sum, data_total: Sum
    ) -> RunCounters:
        """See `Framework.counters`."""
        return batches.make_counters(parts, run, learner.learner, total, data_total)

    def numbers_of(self, losses: Sequence[Any]) -> list[float]:
        """See `Framework.numbers_of`."""
        return tensors.numbers_of(losses)

    def loss_figures(self, parts: TrainerParts, losses: Losses[Any], steps: int) -> dict[str, float]:
        """See `Framework.loss_figures`."""
        return learner.loss_figures(parts, losses, steps)

    # Checkpoints

    def optimizer_state(self, parts: TrainerParts) -> Exportable:
        """Return what exports and loads the optimizer. Raises CheckpointError if the engine's state is unknown."""
        return state.optimizer_state(parts)

    def snapshots(self, parts: TrainerParts) -> Snapshots:
        """See `Framework.snapshots`."""
        return state.snapshots(parts)

    def group_sizes(self, parts: TrainerParts) -> Sequence[int]:
        """See `Framework.group_sizes`."""
        return state.group_sizes(parts)

    def names_without_decay(self, parts: TrainerParts) -> list[str]:
        """See `Framework.names_without_decay`."""
        return state.names_without_decay(parts)

    def parameter_shapes(self, parts: TrainerParts) -> list[list[Any]]:
        """See `Framework.parameter_shapes`."""
        return state.parameter_shapes(parts)
