"""The averages of weights of a run of torch: which ones the optimizer and arguments ask for, and their checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from hexloop.adapters.contents.checkpoint import EMA
from hexloop.adapters.trainable.torch.averaged_weights import AveragedLayout, AveragedWeights, averaged_parameters
from hexloop.adapters.trainable.torch.moving_averages import MovingAverages
from hexloop.adapters.trainable.torch.optimizer_modes import (
    ModalOptimizer,
    OptimizerModes,
    switches_modes,
    without_wrappers,
)
from hexloop.app.arguments.averages import BESIDE
from hexloop.app.assembly.learner import AveragedWeights as Port
from hexloop.app.assembly.learner import Averages, NoAverages
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.saved_weights import AdaptersAlone, SavedWeights, saved_weights
from hexloop.app.assembly.torch.state import layout_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import best_metric_named
from hexloop.domain.triggers import whole_steps
from hexloop.ports.parallelism import ExportableModel
from hexloop.ports.state import Exportable, Part

FLAT = ("constant", "constant_with_warmup")
"""The schedules that schedule-free optimizers are meant for."""


def averages_of(parts: TrainerParts, total_steps: int) -> Port:
    """Return the averages that are evaluated and saved; see `Framework.averages`."""
    args, optimizer = parts.args, without_wrappers(parts.optimizer)
    switches, moving = switches_modes(optimizer), args.ema_decay is not None
    if not switches and not moving:
        return NoAverages()
    if switches:
        _warn_of_schedule(parts, optimizer)
        if not parts.rules.own_averages:
            return TransformersModes(optimizer)
    _refuse(parts, optimizer, switches, moving)
    model, layout, policy = parts.unwrapped_model, layout_of(parts), saved_weights(parts.unwrapped_model)
    parameters = averaged_parameters(model, optimizer, layout)
    if switches:
        by_optimizer = OptimizerModes(model, optimizer, parameters, layout)
        return CheckpointedAverages(by_optimizer, policy, parts, before_forward=optimizer.train)
    first, beside = whole_steps(args.ema_start_step, total_steps), args.ema_weights == BESIDE
    averages = MovingAverages(model, parameters, args.ema_decay or 0.0, first, args.ema_update_every, beside, layout)
    return CheckpointedAverages(averages, policy, parts, after_step=averages.update)


def _warn_of_schedule(parts: TrainerParts, optimizer: Any) -> None:
    """Warn if the rate of a schedule-free optimizer follows a schedule."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}".lower() for kind in type(optimizer).__mro__]
    schedule = str(getattr(parts.args.lr_scheduler_type, "value", parts.args.lr_scheduler_type))
    if parts.args.should_log and schedule not in FLAT and any("schedulefree" in kind for kind in kinds):
        logging.getLogger("hexloop").warning(
            "The optimizer %s averages its weights in place of a schedule, and lr_scheduler_type=%r lowers the "
            "learning rate as well; set lr_scheduler_type='constant'. warmup_steps reach the optimizer itself.",
            type(optimizer).__name__,
            schedule,
        )


def _refuse(parts: TrainerParts, optimizer: Any, switches: bool, moving: bool) -> None:
    """Raise ConfigurationError for what cannot be combined with averages."""
    capabilities, named = parts.adapters.parallelism.capabilities, type(optimizer).__name__
    what = f"The optimizer {named}, which has the modes train and eval," if switches else "ema_decay"
    if switches and moving:
        raise ConfigurationError(
            f"ema_decay cannot be used with the optimizer {named}, which averages the weights itself; leave ema_decay "
            "out, or choose another optimizer, such as adamw_torch."
        )
    if capabilities.owns_update or capabilities.owns_state or not capabilities.averages:
        raise ConfigurationError(
            f"{what} cannot be used with the parallelism {capabilities.name}, which keeps the weights in a form of its "
            "own, in which they cannot be averaged; train with DDP or with FSDP version 2."
        )
    if moving and parts.args.ema_weights == "beside":
        policy = saved_weights(parts.unwrapped_model)
        if not _takes_layouts(policy):
            raise ConfigurationError(
                f"ema_weights='beside' cannot be used with the policy {type(policy).__name__}, which exports the "
                "weights of the model in its own way; set ema_weights='instead'."
            )
        if policy.saved_as(parts.args):
            raise ConfigurationError(
                "ema_weights='beside' cannot be used with adapters of PEFT, whose files are in folders of the "
                "adapters' names; set ema_weights='instead', or save_full_model=True."
            )


def _takes_layouts(policy: SavedWeights) -> bool:
    """Return whether what a policy exports is that of a layout, and not of the model itself."""
    return type(policy).state in (SavedWeights.state, AdaptersAlone.state)


@frozen(eq=False)
class TransformersModes(NoAverages):
    """Implements AveragedWeights for the modes of an optimizer as transformers switches them.

    What is saved is what the last mode left in the model.
    """

    modes: ModalOptimizer

    @property
    def before_forward(self) -> Callable[[], object]:  # type: ignore[override]
        """Puts the optimizer in training mode."""
        return self.modes.train

    def show(self) -> None:
        """Put the optimizer in evaluation mode."""
        self.modes.eval()


@frozen(eq=False)
class CheckpointedAverages:
    """Implements AveragedWeights, with the components of a checkpoint."""

    averages: AveragedWeights
    _policy: SavedWeights
    _parts: TrainerParts
    before_forward: Callable[[], object] | None = None
    after_step: Callable[[bool], None] | None = None
    _layout: AveragedLayout = field(init=False)

    @_layout.default
    def _make_layout(self) -> AveragedLayout:
        return AveragedLayout(layout_of(self._parts))

    @property
    def kind(self) -> str:
        """What computes them."""
        return self.averages.kind

    @property
    def beside(self) -> bool:
        """Whether the weights that are trained are evaluated and saved too."""
        return self.averages.beside

    @property
    def shown(self) -> bool:
        """Whether they are in the model at present."""
        return self.averages.shown

    def show(self) -> None:
        """Put them into the model."""
        self.averages.show()

    def hide(self) -> None:
        """Put the weights that are trained back."""
        self.averages.hide()

    def conceal(self) -> Callable[[], None]:
        """Put the weights that are trained back for some time."""
        return self.averages.conceal()

    def settle(self) -> None:
        """Leave them in the model, unless they are kept beside it."""
        self.averages.settle()

    def resume(self, updates: int) -> None:
        """Continue with what was loaded."""
        self.averages.resume(updates)

    def components(self, model: ExportableModel) -> Mapping[str, Exportable]:
        """Return the averages, and what a checkpoint holds of the model instead of the weights that are trained."""
        parts = evolve(self._parts, averages=Averages(layout=self._layout))
        copies = not _takes_layouts(self._policy) or bool(self._policy.saved_as(parts.args))
        averaged = AveragedModel(self.averages, model, self._policy.state(parts), self._layout, copies)
        if not self.beside:
            return {"averages": self.averages, "model": averaged}
        best = best_metric_named(self._parts.args)
        is_best = best.full_name.startswith(f"{best.prefix}{EMA}_")
        return {"averages": self.averages, EMA: ModelBeside(averaged, is_best)}

    def kept(self) -> Mapping[str, Exportable]:
        """Return what a copy in memory holds of them."""
        return self.averages.kept()


@frozen(eq=False)
class AveragedModel:
    """Implements the ExportableModel port for a model whose checkpoints hold averages.

    plain: exports and loads the model as it is. averaged: the same with the averages, by `layout`.
    copies: whether what is exported is copied while the model has the averages: tensors of adapters may be computed
    from the model, as those of prompt encoders are, and a policy may not know of layouts.
    """

    averages: AveragedWeights
    plain: ExportableModel
    averaged: ExportableModel
    layout: AveragedLayout
    copies: bool = False

    def export(self) -> Iterator[Part]:
        """Export the averages in place of the weights that are trained."""
        self.layout.use(self.averages.exported())
        if self.copies:
            self.averages.show()
        try:
            found = list(self.averaged.export())
            if self.copies:
                found = [_copied(part) for part in found]
        finally:
            if self.copies:
                self.averages.hide()
            self.layout.use({})
        yield from found

    def load(self, parts: Iterable[Part]) -> None:
        """Load the parts into the model itself; see `AveragedWeights.resume`."""
        self.plain.load(parts)

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        """Return how saved tensors differ from the model's."""
        return self.plain.differences(parts, types)


def _copied(part: Part) -> Part:
    """Return a part with a copy of its bytes."""
    data = bytes(part.read())
    return Part(part.name, part.dtype, part.shape, part.offset, part.length, lambda: memoryview(data))


@frozen(eq=False)
class ModelBeside:
    """Implements the Exportable port for the model with the averages, beside the one that is trained.

    is_best: whether the run ends with the best averages, and not with the best of the weights that are trained.
    """

    model: AveragedModel
    is_best: bool

    def export(self) -> Iterator[Part]:
        """Export the model with the averages."""
        return self.model.export()

    def load(self, parts: Iterable[Part]) -> None:
        """Load the averages; at the end of a run, the best ones may be loaded into the model itself."""
        averages, parts = self.model.averages, list(parts)
        assert isinstance(averages, MovingAverages)
        if not parts:
            return  # of a checkpoint without them
        if averages.over and self.is_best:
            self.model.plain.load(parts)
            averages.forget()
        elif averages.started:
            own = averages.parameters
            self.model.layout.use({id(own[name]): each for name, each in averages.averages.items()})
            try:
                self.model.averaged.load(parts)
            finally:
                self.model.layout.use({})
