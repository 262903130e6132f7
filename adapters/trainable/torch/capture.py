"""Training steps whose operations are recorded once and replayed, which costs the host next to nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_not
from typing import Any, TypeAlias, cast

import torch
from attrs import frozen
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hexloop.adapters.trainable.torch.decay_groups import PLAIN
from hexloop.adapters.trainable.torch.trainable import TorchTrainable
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.loop import StandardLearner
from hexloop.ports.learner import Precision
from hexloop.ports.parallelism import Parallelism

LOGGER = logging.getLogger("hexloop")

Record: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the operations of a function without executing them; returns what executes them. See `Device.capture`."""

Compile: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

MOST_KINDS = 32
"""The most kinds of batches that are recorded, each of which keeps its own inputs and gradients on the device."""

INSTEAD = "choose optim='adamw_torch', 'adamw_torch_fused' or 'sgd', or leave capture_step out"


def refuse_uncapturable(optimizer: Optimizer) -> None:
    """Raise ConfigurationError if an optimizer keeps numbers of its update on the host, where no replay changes them.

    Possible are SGD, and those optimizers of torch that take `capturable` or are fused.
    """
    of_torch = type(optimizer).__module__.startswith("torch.optim")
    able = all("capturable" in group or group.get("fused") for group in optimizer.param_groups)
    if not of_torch or not (able or type(optimizer) is SGD):
        raise ConfigurationError(
            f"capture_step=True cannot be used with the optimizer {type(optimizer).__name__}: what its step computes "
            f"in Python would be computed once, and not at each step; {INSTEAD}."
        )


@frozen(eq=False)
class Pass:
    """A forward and backward pass over one kind of batch.

    replay: runs it; None if it could not be recorded. inputs: where it reads the batch. loss: where it writes the loss.
    gradients: where it writes those of the learner's parameters, in their order; None for one that gets none.
    """

    replay: Callable[[], None] | None = None
    inputs: Sequence[Tensor] = ()
    loss: Tensor | None = None
    gradients: Sequence[Tensor | None] = ()


class CapturedLearner(StandardLearner[Any, Tensor]):
    """The standard learner, whose passes, clipping and optimizer step are replayed; hooks are called between them.

    Batches with the same names, shapes and dtypes are of one kind. A kind runs as usual when it comes first, which
    allocates state and lets kernels be chosen, and is recorded when it comes again. What no replay would follow is
    looked for at each step: parameters, gradients or optimizer state in other memory, other options of the optimizer,
    frozen parameters, modes of modules. The step then runs as usual, and is recorded again. Losses and norms are
    copies.

    record: None if the device cannot record. compiling: compiles the clipping and the optimizer step, if given.
    Raises ConfigurationError for an optimizer that cannot be captured.
    """

    def __init__(
        self,
        trainable: TorchTrainable,
        precision: Precision[Tensor],
        parallelism: Parallelism[Tensor],
        before_optimizer_step: Callable[[], None] | None = None,
        after_optimizer_step: Callable[[], None] | None = None,
        *,
        record: Record | None,
        compiling: Compile | None = None,
    ) -> None:
        refuse_uncapturable(trainable.optimizer)
        updated = [each for group in trainable.optimizer.param_groups for each in group["params"]]
        self._parameters: list[Tensor] = list(dict.fromkeys([*trainable.model.parameters(), *updated]))
        self._modules = list(trainable.model.modules())
        self._updated = updated[-1]
        self._enter_training_mode = trainable.enter_training_mode
        self._optimizer = trainable.optimizer
        self._record = record
        self._passes: dict[Hashable, Pass | None] = {}
        self._updates: dict[Hashable, tuple[Hashable, Callable[[], Tensor | None] | None]] = {}
        self._has_warned = False
        self._first: Pass | None = None
        self._starts_window = True
        self._fixed: tuple[Any, ...] = ()
        self._rates = Rates(trainable.optimizer)
        below_hooks, optimizer = _below_hooks(trainable.optimizer), trainable.optimizer
        self._clip, self._step = trainable.clip, lambda: below_hooks(optimizer)
        if compiling is not None:
            self._clip, self._step = compiling(self._clip), compiling(self._step)
        trainable.clip = self._clip_or_replay
        stepping = SteppingBy(precision, self._step_or_replay)
        super().__init__(trainable, stepping, parallelism, before_optimizer_step, after_optimizer_step)

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Tensor:
        """Run or replay forward and backward of one micro-batch; see `Learner.micro_step`.

        The passes after the first of a window add to its gradients, so each is recorded for one first pass.
        """
        starts, self._starts_window = self._starts_window, last_of_window
        if starts:
            self._first = None
            self._enter_training_mode()
            self._forget_what_changed()
        key = None
        if starts or self._first is not None:
            key = self._kind(batch, window_items)
        if key is None or self._record is None:
            return super().micro_step(batch, window_items, last_of_window)
        if key not in self._passes:
            self._note(key)
            return super().micro_step(batch, window_items, last_of_window)
        found = self._passes[key]
        if found is None:
            found = self._passes[key] = self._recorded(self._record, batch, window_items, last_of_window)
        if found.replay is None or found.loss is None:
            return super().micro_step(batch, window_items, last_of_window)
        torch._foreach_copy_(list(found.inputs), _tensors(batch, window_items))
        if starts:
            self._first = found
            for parameter, gradient in zip(self._parameters, found.gradients, strict=True):
                parameter.grad = gradient
        found.replay()
        return found.loss.clone()

    def _kind(self, batch: Any, items: Any) -> Hashable | None:
        """Return what a pass depends on but for the values of tensors; None if a recording would not follow it."""
        if not isinstance(batch, Mapping):
            return None
        parts: list[Hashable] = [self._first]
        for name, value in (*batch.items(), ("", items)):
            if isinstance(value, Tensor) and value.device == self._updated.device:
                parts.append((name, value.shape, value.dtype))
            elif type(value) in PLAIN:
                parts.append((name, value))
            else:
                return None
        return tuple(parts) if _tensors(batch, items) else None

    def _note(self, key: Hashable) -> None:
        """Remember a kind of batch that came for the first time; warn at the first one that is too many."""
        if len(self._passes) < MOST_KINDS:
            self._passes[key] = None
        elif not self._has_warned:
            self._has_warned = True
            LOGGER.warning(
                "capture_step: the batches are of more than %s kinds, and those of further kinds run as usual. Pad "
                "them to a few lengths, with pad_to_multiple_of of the data collator, for one.",
                MOST_KINDS,
            )

    def _recorded(self, record: Record, batch: Any, window_items: Any, last_of_window: bool) -> Pass:
        """Record a pass over a copy of the batch. The parameters then have its gradients."""
        fixed = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
        items = window_items.clone() if isinstance(window_items, Tensor) else window_items
        before = [parameter.grad for parameter in self._parameters]
        losses: list[Tensor] = []
        run = super().micro_step
        replay = _attempt(record, lambda: losses.append(run(fixed, items, last_of_window)))
        gradients = [parameter.grad for parameter in self._parameters]
        had, have = ([each is not None for each in found] for found in (before, gradients))
        if replay is not None and (any(had) and had != have):
            LOGGER.warning("capture_step: batches that train other parameters than the first of a step run as usual.")
            replay = None
        if replay is None:
            for parameter, gradient in zip(self._parameters, before, strict=True):
                parameter.grad = gradient
            return Pass()
        return Pass(replay, _tensors(fixed, items), losses[0], gradients)

    def _clip_or_replay(self, max_norm: float) -> Tensor:
        """Scale the gradients, and return a copy of their norm before; see `Gradients.clip`."""
        return cast(Tensor, self._call("clip", max_norm, partial(self._clip, max_norm))).clone()

    def _step_or_replay(self) -> None:
        """Take the optimizer step, with its hooks."""
        optimizer = self._optimizer
        optimizer._opt_called = True  # type: ignore[attr-defined]  # which torch's schedules ask for
        for before in (*_global_optimizer_pre_hooks.values(), *optimizer._optimizer_step_pre_hooks.values()):
            before(optimizer, (), {})
        with self._rates.as_tensors(), torch.no_grad():
            self._call("step", self._rates.options(), self._step)
        for after in (*optimizer._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values()):
            after(optimizer, (), {})

    def _call(self, name: str, options: Hashable, run: Callable[[], Tensor | None]) -> Tensor | None:
        """Run a part of the update as usual at first, record it the next time, and replay it from then on.

        options: what the part depends on. It runs as usual if they changed, or if the gradients are in other memory.
        """
        first, record = self._first, self._record
        if first is None or record is None:
            return run()
        if any(map(is_not, (each.grad for each in self._parameters), first.gradients)):
            return run()
        last_options, replay = self._updates.get((first, name), (None, None))
        if last_options != options:
            self._updates[first, name] = (options, None)
            return run()
        if replay is None:
            results: list[Tensor | None] = []
            recorded = _attempt(record, lambda: results.append(run()))
            replay = run if recorded is None else partial(_replayed, recorded, results)
            self._updates[first, name] = (options, replay)
        return replay()

    def _forget_what_changed(self) -> None:
        """Forget all recordings if they would not follow what has changed since the last step.

        That are the memory of parameters and of the optimizer's state, what is trained, and the modes of modules.
        """
        state = self._optimizer.state
        moments = state.get(self._updated, {}).values()
        of_state = [id(state), *(each.data_ptr() for each in moments if isinstance(each, Tensor))]
        trained = (each.requires_grad for each in self._parameters)
        modes = (each.training for each in self._modules)
        found = (*map(Tensor.data_ptr, self._parameters), *of_state, *trained, *modes)
        if found != self._fixed:
            self._fixed = found
            self._passes.clear()
            self._updates.clear()


OPTIONS = ("lr", "capturable")
"""Options of an optimizer's group that are others while it steps."""


class Rates:
    """The learning rates of an optimizer's groups: numbers, and tensors while the optimizer steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._tensors: list[Tensor] = []
        self._values: list[float] = []

    @contextmanager
    def as_tensors(self) -> Iterator[None]:
        """Let the optimizer read its rates, and count its steps, on the device during the block."""
        groups = self._optimizer.param_groups
        if len(self._tensors) != len(groups):
            self._tensors = list(map(_rate_of, groups))
            self._values = [0.0] * len(groups)
        own: list[dict[str, Any]] = [{name: group[name] for name in OPTIONS if name in group} for group in groups]
        for number, (group, rate) in enumerate(zip(groups, self._tensors, strict=True)):
            if not isinstance(group["lr"], Tensor):
                if self._values[number] != group["lr"]:
                    self._values[number] = group["lr"]
                    rate.fill_(group["lr"])
                group["lr"] = rate
            if "capturable" in group and not group.get("fused") and rate.device.type != "cpu":
                group["capturable"] = True
                _count_on_device(self._optimizer, group)
        try:
            yield
        finally:
            for group, values in zip(groups, own, strict=True):
                group.update(values)

    def options(self) -> Hashable:
        """Return the other options of the groups, as far as they are plain values."""
        return tuple(
            (name, value)
            for group in self._optimizer.param_groups
            for name, value in group.items()
            if type(value) in PLAIN
        )


class SteppingBy:
    """Precision adapter of another one without loss scaling, which takes the optimizer's step by a function."""

    def __init__(self, precision: Precision[Tensor], step: Callable[[], None]) -> None:
        self.name, self.wrap, self.convert = precision.name, precision.wrap, precision.convert
        self.scale, self.unscale = precision.scale, precision.unscale
        self.discard_update, self.export, self.load = precision.discard_update, precision.export, precision.load
        self._step = step

    def step(self, optimizer: Any) -> bool:
        """Take the step, and return True."""
        self._step()
        return True


def _attempt(record: Record, run: Callable[[], None]) -> Callable[[], None] | None:
    """Record a function and return what replays it; None, with a warning, if it cannot be recorded."""
    try:
        return record(run)
    except Exception as error:  # an error of the program's own comes again when it runs as usual
        reason = str(error).strip().partition("\n")[0]
        LOGGER.warning(
            "capture_step: a part of the training step cannot be recorded, and runs as usual (%s: %s).",
            type(error).__name__,
            reason,
        )
        return None


def _replayed(replay: Callable[[], None], results: Sequence[Tensor | None]) -> Tensor | None:
    replay()
    return results[0]


def _tensors(batch: Mapping[str, Any], items: Any) -> list[Tensor]:
    return [value for value in (*batch.values(), items) if isinstance(value, Tensor)]


def _below_hooks(optimizer: Optimizer) -> Callable[..., Any]:
    """Return the step of an optimizer's class without what torch calls around it."""
    step = type(optimizer).step
    return cast("Callable[..., Any]", getattr(step, "__wrapped__", step))


def _rate_of(group: Mapping[str, Any]) -> Tensor:
    """Return a tensor for the learning rate of a group, in float32 where kernels of the device require it."""
    device = group["params"][0].device if group["params"] else torch.device("cpu")
    return torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)


def _count_on_device(optimizer: Optimizer, group: Mapping[str, Any]) -> None:
    """Move the counters of steps, which a checkpoint may have put on the host, to the parameters."""
    for parameter in group["params"]:
        steps = optimizer.state.get(parameter, {}).get("step")
        if isinstance(steps, Tensor) and steps.device != parameter.device:
            optimizer.state[parameter]["step"] = steps.to(parameter.device)
