"""torch as the framework of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hexloop.adapters.batches.torch.loader import example_count, is_iterable
from hexloop.adapters.batches.torch.passes import KeptLoaders
from hexloop.adapters.batches.torch.random_streams import random_fingerprint
from hexloop.adapters.batches.torch.reproduction import import_before_seeding
from hexloop.adapters.batches.torch.structure import batch_fingerprint
from hexloop.adapters.trainable.torch.decay_groups import decayed_names
from hexloop.adapters.trainable.torch.forward import default_label_names, returns_loss_by_default, takes_any_keyword
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.adapters.trainable.torch.optimizers import build_optimizer
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.framework import Framework
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch import (
    accelerator,
    averages,
    buckets,
    data,
    determinism,
    forecast,
    groups,
    learner,
    losses,
    meters,
    packing,
    state,
    tensors,
)
from hexloop.app.assembly.torch import batches as run_batches
from hexloop.app.assembly.torch import model as models
from hexloop.app.assembly.torch.saved_weights import saved_weights
from hexloop.app.assembly.torch.transfer import batch_preparation
from hexloop.app.rules import rules_of
from hexloop.domain.run import Run


class TorchFramework(Framework[TrainerParts]):
    """torch, with its data loaders, optimizers and schedules: where each question of `Framework` is answered.

    `hexloop.app.overrides.framework` adds the learner and the evaluator, around which methods of the user's may stand.
    """

    # The model

    model_kind = "a torch.nn.Module, such as that of AutoModel.from_pretrained(...) for the name or folder of a model"
    place = staticmethod(models.place_model)
    weights = staticmethod(saved_weights)
    refuse_unprepared = staticmethod(state.refuse_unprepared)
    unwrapped = staticmethod(unwrapped)
    own_class = staticmethod(state.own_class)
    takes_item_count = staticmethod(takes_any_keyword)
    returns_loss = staticmethod(returns_loss_by_default)
    label_names = staticmethod(default_label_names)
    label_smoother = staticmethod(losses.smoother_for)
    receive = staticmethod(models.apply_liger_kernels)
    share = staticmethod(accelerator.share_run)
    patched = staticmethod(models.patched)
    compiled = staticmethod(models.compiled)
    kept_on_host = staticmethod(tensors.kept_on_host)
    array_later = staticmethod(tensors.array_later)

    def parameter_counts(self, parts: TrainerParts) -> tuple[int, int]:
        """See `Framework.parameter_counts`."""
        count, parameters = parts.adapters.engine.element_count, list(parts.unwrapped_model.parameters())
        return sum(map(count, parameters)), sum(count(each) for each in parameters if each.requires_grad)

    def parameter_bytes(self, parts: TrainerParts) -> int:
        """See `Framework.parameter_bytes`."""
        count = parts.adapters.engine.element_count
        return sum(count(each) * each.element_size() for each in parts.unwrapped_model.parameters())

    def is_model(self, candidate: Any) -> bool:
        """Return whether an object has parameters, and is not a class."""
        return not isinstance(candidate, type) and hasattr(candidate, "parameters")

    def enter_training(self, model: Any) -> None:
        """See `Framework.enter_training`."""
        model.train()

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `Framework.named_parameters`."""
        named: Iterable[tuple[str, Any]] = model.named_parameters()
        return named

    # The process

    flags = staticmethod(determinism.flags_for)
    environment = staticmethod(determinism.environment)
    random_fingerprint = staticmethod(random_fingerprint)

    def begin(self, args: TrainingArguments) -> None:
        """With `reproduce`, import what draws random numbers, and set what transformers sets for the whole process."""
        if not rules_of(args).own_order:
            import_before_seeding()
            if args.full_determinism:
                determinism.enable_full_determinism(args.seed)

    def run_began(self, run: Run[Any, Any]) -> None:
        """Let accelerate's state show the signals of a run."""
        run.signals = accelerator.shown(run.signals)

    def run_ended(self, run: Run[Any, Any]) -> None:
        """Let accelerate's state no longer have the loader of a run as one that is read."""
        run_batches.end_pass(run.batches)

    # The data

    loader = staticmethod(data.make_loader)
    batches = staticmethod(run_batches.training_data)
    buckets = staticmethod(buckets.described)
    packing = staticmethod(packing.described)
    batch_preparation = staticmethod(batch_preparation)
    collator = staticmethod(data.default_collator)
    kept_loaders = staticmethod(KeptLoaders)
    stop_workers = staticmethod(run_batches.stop_workers)
    sample_count = staticmethod(example_count)
    batch_fingerprint = staticmethod(batch_fingerprint)

    def order_of(self, parts: TrainerParts, dataset: Any) -> Any:
        """See `Framework.order_of`."""
        chooses = parts.rules.own_order and not is_iterable(dataset) and hasattr(dataset, "__len__") and len(dataset)
        return data.training_order(parts, dataset, 0) if chooses else None

    # Training

    choose_optimizer = staticmethod(models.choose_optimizer)
    build_optimizer = staticmethod(build_optimizer)
    build_by_rules = staticmethod(groups.build_by_rules)
    refuse_groups = staticmethod(groups.refuse_groups)
    group_lines = staticmethod(groups.group_lines)
    rate_groups = staticmethod(groups.rate_groups)
    can_join = staticmethod(groups.can_join)
    join_schedule = staticmethod(groups.join_schedule)
    group_options = staticmethod(groups.group_options)
    rejoin_group = staticmethod(groups.rejoin_group)
    joining_groups = staticmethod(groups.joining_groups)
    decayed_names = staticmethod(decayed_names)
    schedule = staticmethod(models.make_lr_scheduler)
    scheduler = staticmethod(models.scheduler_adapter)
    stretch = staticmethod(models.stretch_schedule)
    averages = staticmethod(averages.averages_of)
    losses = staticmethod(learner.make_losses)
    window_values = staticmethod(learner.make_window_values)
    counters = staticmethod(run_batches.make_counters)
    numbers_of = staticmethod(tensors.numbers_of)
    loss_figures = staticmethod(learner.loss_figures)
    compiling = staticmethod(meters.compiling)
    peak_flops = staticmethod(meters.peak_flops)
    profiler = staticmethod(meters.TorchProfiler)
    fake_copy = staticmethod(forecast.fake_copy)
    count_real_step = staticmethod(forecast.count_real_step)
    values_in = staticmethod(forecast.values_in)
    free_on = staticmethod(forecast.free_on)
    wait_for_device = staticmethod(forecast.wait_for_device)

    # Checkpoints

    optimizer_state = staticmethod(state.optimizer_state)
    kept_state = staticmethod(state.kept_state)
    snapshots = staticmethod(state.snapshots)
    group_sizes = staticmethod(state.group_sizes)
    names_without_decay = staticmethod(state.names_without_decay)
    parameter_shapes = staticmethod(state.parameter_shapes)
