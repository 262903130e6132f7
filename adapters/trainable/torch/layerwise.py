"""Optimizer steps within the backward pass: each parameter is updated as soon as its gradient is complete.

Its gradient is freed at once, so that without accumulation only a few gradients exist at a time. The optimizer is an
ordinary one: for the step of a parameter, its groups are replaced by one with that parameter alone. So its state, its
checkpoints and the schedule of its rates are those of the optimizer that steps all parameters at the end, and so are
its results.

Clipping to a global norm needs the norm of all gradients before the first update. For a window of one micro-batch the
backward pass runs twice: first it only measures. In a window of several micro-batches all gradients exist anyway, and
are clipped after the last one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from threading import Lock
from typing import Any, Protocol

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from hexloop.adapters.trainable.torch.trainable import NORM_EPSILON, TorchTrainable
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.ports.parallelism import ParallelismCapabilities

PARAMS = "params"

_ABSENT = object()


class Reduction(Protocol):
    """Completes gradients, of which each process computes a share. The order is the same in all processes."""

    def begin(self, parameters: Sequence[Parameter], take: Callable[[Parameter], None]) -> None:
        """Start a backward pass that ends in updates of these parameters. take: called for each complete gradient."""

    def add(self, parameter: Parameter) -> None:
        """Add this process's share, the gradient of a parameter."""

    def finish(self) -> None:
        """Complete the gradients of parameters that had none in this pass, but may have some in other processes."""


class NoReduction:
    """Implements Reduction for a single process, whose gradients are complete as they are."""

    def __init__(self) -> None:
        self._left = dict[int, Parameter]()

    def begin(self, parameters: Sequence[Parameter], take: Callable[[Parameter], None]) -> None:
        """See `Reduction.begin`."""
        self._take = take
        self._left = {id(each): each for each in parameters if each.grad is not None}

    def add(self, parameter: Parameter) -> None:
        """Take the gradient at once."""
        self._left.pop(id(parameter), None)
        self._take(parameter)

    def finish(self) -> None:
        """Take gradients of earlier micro-batches to which the last one added nothing."""
        left, self._left = self._left, {}
        for parameter in left.values():
            self._take(parameter)


class _Mode(Enum):
    """What is done with a gradient that is complete."""

    ADDED_UP = "left for the next micro-batch"
    KEPT = "left until the end of the backward pass, to be clipped"
    MEASURED = "measured and freed; the backward pass will run again"
    TAKEN = "measured, unless it was, clipped and used for an update"


class LayerwiseSteps:
    """The steps of an optimizer within the backward passes of a model, and what a learner asks for afterwards.

    max_norm: the norm to which all gradients together are clipped; 0: they are not. reduction: completes gradients of
    several processes.
    Raises ConfigurationError for an optimizer that cannot update one parameter without the others.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, max_norm: float, reduction: Reduction) -> None:
        refuse_joint_steps(optimizer)
        self._optimizer = optimizer
        self._max_norm, self._reduction = max_norm, reduction
        self._focus = Focus(optimizer)
        self._lock = Lock()  # hooks run in a thread for each device
        self._handles = dict[int, Any]()
        self._of_model = tuple(model.parameters())
        self._measured = frozenset(map(id, self._of_model))
        self._watched = list[Parameter]()
        self._arrived = set[int]()
        self._norms = dict[int, Tensor]()
        self._factor: Tensor | None = None
        self._mode = _Mode.ADDED_UP
        self._adds_up = self._is_measured = False

    # What happens in a window of micro-batches

    def begin(self, last_of_window: bool) -> None:
        """Prepare the backward pass of the next micro-batch."""
        if not last_of_window:
            self._mode, self._adds_up = _Mode.ADDED_UP, True
            return
        self._watch()
        self._norms, self._factor, self._is_measured = {}, None, False
        self._begin_pass(_Mode.KEPT if self._max_norm > 0 else _Mode.TAKEN)

    def backward(self, loss: Any) -> None:
        """Run the backward pass of a loss, and the updates; twice if the norm has to be known first."""
        if self._mode is _Mode.ADDED_UP:
            loss.backward()
            return
        if self._mode is _Mode.KEPT and not self._adds_up:
            self._begin_pass(_Mode.MEASURED)
            with unobserved():  # its operations are not those of the model, which the second pass counts
                loss.backward(retain_graph=True)
            self._reduction.finish()
            self._is_measured, self._factor = True, self._clip_factor()
            self._begin_pass(_Mode.TAKEN)
        loss.backward()
        self._reduction.finish()

    def clip(self, max_norm: float) -> Tensor | None:
        """Take the updates that are left, and return the norm of all gradients before clipping, on the device.

        None if there were no gradients.
        """
        if self._mode is _Mode.ADDED_UP:  # the window had no backward pass of its last micro-batch
            self._adds_up = False
            return None
        self._reduction.finish()  # no-op, unless a function of the user's called `loss.backward()`
        if self._mode is _Mode.KEPT:
            kept = [each for each in self._watched if each.grad is not None]
            gradients = {id(each): each.grad for each in kept if id(each) in self._measured}
            self._norms = {number: norm_of(each) for number, each in gradients.items() if each is not None}
            self._is_measured, self._factor, self._mode = True, self._clip_factor(), _Mode.TAKEN
            for parameter in kept:
                self._take(parameter)
        self._focus.settle()
        self._mode, self._adds_up = _Mode.ADDED_UP, False
        return self._total_norm()

    def step(self) -> None:
        """No-op: the updates were taken in the backward pass."""

    def close(self) -> None:
        """Stop updating parameters."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    # Gradients as they arrive

    def _watch(self) -> None:
        """Find the parameters that are trained now, and follow those that were not trained before."""
        updated = (each for group in self._optimizer.param_groups for each in group[PARAMS])
        every = {id(each): each for each in (*self._of_model, *updated) if each.requires_grad}
        self._watched = list(every.values())
        self._focus.find_parameters()
        for number, parameter in every.items():
            if number not in self._handles:
                self._handles[number] = parameter.register_post_accumulate_grad_hook(self._arrive)

    def _begin_pass(self, mode: _Mode) -> None:
        self._mode = mode
        self._arrived.clear()
        self._reduction.begin(self._watched, self._take)

    def _arrive(self, parameter: Tensor) -> None:
        if self._mode is _Mode.ADDED_UP:
            return
        with self._lock:
            if id(parameter) in self._arrived:
                raise RunStateError(
                    f"The gradient of a parameter of shape {tuple(parameter.shape)} arrived twice in one step, after "
                    "its update was taken in the backward pass. Add the losses and run one backward pass for them; "
                    "with activation checkpointing set use_reentrant to False in its options."
                )
            self._arrived.add(id(parameter))
            self._reduction.add(parameter)  # type: ignore[arg-type]  # only parameters are watched

    def _take(self, parameter: Parameter) -> None:
        """Use a complete gradient as the mode says."""
        gradient = parameter.grad
        if gradient is None or self._mode is _Mode.KEPT:
            return
        is_measured = id(parameter) in self._measured
        if is_measured and not self._is_measured:
            self._norms[id(parameter)] = norm_of(gradient)
        if self._mode is _Mode.TAKEN:
            if is_measured and self._factor is not None:
                gradient.mul_(self._factor.to(gradient.device))
            self._focus.step(parameter)
        parameter.grad = None

    def _total_norm(self) -> Tensor | None:
        """Return the norm of all gradients. The order of the sum is the same in all processes."""
        return total_norm([norm for each in self._watched if (norm := self._norms.get(id(each))) is not None])

    def _clip_factor(self) -> Tensor | None:
        norm = self._total_norm()
        return None if norm is None else (norm + NORM_EPSILON).reciprocal_().mul_(self._max_norm).clamp_(max=1.0)


def norm_of(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm of a gradient, dense or sparse."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(gradient)
    return norm


def total_norm(norms: Sequence[Tensor]) -> Tensor | None:
    """Return the norm of several gradients from the norm of each, on the device of the first."""
    if not norms:
        return None
    device, dtype = norms[0].device, norms[0].dtype
    for each in norms:
        dtype = torch.promote_types(dtype, each.dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([each.to(device, dtype) for each in norms]))
    return norm


# The step of one parameter


class Focus:
    """Lets an optimizer step one parameter at a time.

    Its groups hold only that parameter during the step. Values that the step changes in its group, such as a counter
    that all parameters of the group share, take effect after the window; they must be the same after each step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._by_position = any("bitsandbytes" in kind.__module__ for kind in type(optimizer).__mro__)
        self._places = dict[int, tuple[int, int]]()
        self._changed = dict[int, dict[str, Any]]()
        self._blank = Parameter(torch.empty(0), requires_grad=False)
        self._prepared = False
        self._is_checked = bool(getattr(optimizer, "updates_one_by_one", False))

    def find_parameters(self) -> None:
        """Find the group and the position of each parameter, which may have changed since the last window."""
        self._places = {
            id(parameter): (number, position)
            for number, group in enumerate(self._optimizer.param_groups)
            for position, parameter in enumerate(group[PARAMS])
        }
        if self._by_position and not self._prepared:
            self._prepared = True
            _prepare_bitsandbytes(self._optimizer)

    def step(self, parameter: Parameter) -> None:
        """Step one parameter. No-op for a parameter that the optimizer does not have."""
        place = self._places.get(id(parameter))
        if place is None:
            return
        optimizer, (number, position) = self._optimizer, place
        groups = optimizer.param_groups
        focused = {**groups[number], PARAMS: [parameter]}
        counters = None if self._is_checked else _numbers(optimizer)
        if self._by_position:  # which has options of parameters by their group and position
            focused[PARAMS] = [*[self._blank] * position, parameter]
            optimizer.param_groups = [*({**group, PARAMS: []} for group in groups[:number]), focused]
        else:
            optimizer.param_groups = [focused]
        try:
            with unobserved():
                optimizer.step()
        finally:
            optimizer.param_groups = groups
        if counters is not None and (moved := _numbers(optimizer).items() - counters.items()):
            self._refuse(f"the attribute {min(moved)[0]!r}")
        self._note(number, focused)

    def _note(self, number: int, focused: dict[str, Any]) -> None:
        """Keep what a step changed in its group."""
        group = self._optimizer.param_groups[number]
        changed = {
            key: value for key, value in focused.items() if value is not group.get(key, _ABSENT) and key != PARAMS
        }
        if number not in self._changed:
            self._changed[number] = changed
        elif changed or self._changed[number]:
            before = self._changed[number]
            if before.keys() != changed.keys() or any(not _is_same(before[key], changed[key]) for key in changed):
                differing = next((key for key in before if not _is_same(before[key], changed.get(key))), *changed)
                self._refuse(f"the value {differing!r} of its groups")

    def settle(self) -> None:
        """Put the values that the steps of a window changed into their groups."""
        for number, changed in self._changed.items():
            if changed:
                self._optimizer.param_groups[number].update(changed)
        self._changed.clear()
        self._is_checked = True

    def _refuse(self, what: str) -> None:
        raise ConfigurationError(
            f"{type(self._optimizer).__name__} cannot step one parameter at a time: {what} depends on all of them. "
            "Set optim_layerwise=False."
        )


def unobserved() -> AbstractContextManager[Any]:
    """Return a context in which operations are not counted as those of the backward pass, nor compiled with it."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def refuse_joint_steps(optimizer: Any) -> None:
    """Raise ConfigurationError for an optimizer that is known not to update one parameter without the others."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"The optimizer is a {name}, which is not a torch optimizer, so its steps cannot be taken layer by layer; "
            "set optim_layerwise=False."
        )
    if type(optimizer).__module__.startswith("lomo_optim"):
        raise ConfigurationError(
            f"The optimizer is the class {name} of lomo-optim itself, which updates weights in hooks of its own; set "
            f"optim={name.lower()!r} instead."
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if (closure is not None and closure.default is closure.empty) or isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError(f"{name} computes the loss in its steps, which cannot be taken layer by layer.")


def _numbers(optimizer: Optimizer) -> dict[str, float]:
    return {name: value for name, value in vars(optimizer).items() if type(value) in (int, float)}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)


def _prepare_bitsandbytes(optimizer: Any) -> None:
    """Do what the first step of an optimizer of bitsandbytes does once, while it has all of its parameters."""
    if not optimizer.initialized:
        optimizer.check_overrides()
        optimizer.to_gpu()
        optimizer.initialized = True


# The adapter of one process


@define(eq=False)
class LayerwiseProcess:
    """Parallelism adapter for one process on one device whose optimizer steps within the backward pass."""

    _steps: LayerwiseSteps | None = field(default=None, init=False)

    capabilities = ParallelismCapabilities("single", steps_in_backward=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the model itself, and its optimizer."""
        return model, make_optimizer(model)

    def attach(self, trainable: TorchTrainable, max_norm: float) -> Callable[[], None]:
        """See `SteppingInBackward.attach`."""
        steps = LayerwiseSteps(trainable.model, trainable.optimizer, max_norm, self._reduction())
        self._steps = steps
        trainable.optimizer = steps  # type: ignore[assignment]  # a learner only calls its `step`
        trainable.clip = steps.clip  # type: ignore[assignment]  # None without any gradient

        def detach() -> None:
            steps.close()
            self._steps = None

        return detach

    def _reduction(self) -> Reduction:
        return NoReduction()

    def synchronise(self, last_of_window: bool) -> None:
        """Note whether the next backward pass is that of the updates."""
        if self._steps is not None:
            self._steps.begin(last_of_window)

    def backward(self, loss: Any) -> None:
        """Run the backward pass of the loss, with the updates if it is the last one of a window."""
        if self._steps is None:
            loss.backward()
        else:
            self._steps.backward(loss)

    def unwrap(self, model: Any) -> Any:
        """Return the model itself."""
        return model


def parameters_and_buffers(model: nn.Module) -> Iterable[Tensor]:
    """Return the tensors of a model that every process has to start with."""
    yield from (each.detach() for each in model.parameters())
    yield from model.buffers()
