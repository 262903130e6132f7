"""AdamW for weights of 16 bits, in which small updates are not lost: by Kahan summation, or by stochastic rounding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from math import sqrt
from typing import Any, TypeAlias

import torch
from attrs import frozen
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem

NEAREST, STOCHASTIC = "nearest", "stochastic"

HALVES = (torch.bfloat16, torch.float16)

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What moments and compensations may be kept in, by torch's names."""

CHUNK = 1 << 24
"""Elements that are updated at once. It bounds the memory of the update's float32 copies."""

Group: TypeAlias = dict[str, Any]


class AnyPrecisionAdamW(Optimizer):
    """AdamW that computes each update in float32, whatever the weights, moments and gradients are kept in.

    The update is that of Loshchilov and Hutter 2019 (https://arxiv.org/abs/1711.05101, algorithm 2), with the decay
    times the learning rate, as in torch's AdamW. Adding it to a weight of 16 bits rounds the sum, and an update of less
    than half the distance between two such numbers (2**-9 of the weight in bfloat16) is lost in every step. There are
    two ways to keep it:

    use_kahan_summation: keep what rounding cut off in a second number for each weight, and add it to the next update
        (Kahan 1965, https://doi.org/10.1145/363707.363723). The sum of both follows a run in float32.
    rounding: "stochastic" rounds up or down at random, each with the probability that makes the mean exact (Connolly,
        Higham and Mary 2021, https://doi.org/10.1137/20M1334796). It takes no memory, and weights in bfloat16. The
        random bits are a function of `seed`, the step and the parameter, so that replicas of a weight stay equal, and a
        resumed run rounds as one that was not interrupted. "nearest" is the usual rounding.
    momentum_dtype, variance_dtype, compensation_buffer_dtype: what the moments, and the second number of Kahan
        summation, are kept in; torch's types or their names. With a `beta2` of 0.999, a variance in bfloat16 hardly
        decreases: its change is rounded away as well.

    Parameters of 32 or 64 bits are updated as by torch's AdamW. The names and defaults of the first four options are
    those of torchdistX's optimizer of this name, as transformers passes them.

    Raises ConfigurationError for options that contradict each other or do not fit the parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        use_kahan_summation: bool = False,
        momentum_dtype: torch.dtype | str = torch.float32,
        variance_dtype: torch.dtype | str = torch.float32,
        compensation_buffer_dtype: torch.dtype | str = torch.bfloat16,
        rounding: str = NEAREST,
        seed: int = 0,
    ) -> None:
        kept = {
            "momentum_dtype": momentum_dtype,
            "variance_dtype": variance_dtype,
            "compensation_buffer_dtype": compensation_buffer_dtype,
        }
        options = {"use_kahan_summation": use_kahan_summation, "rounding": rounding, "seed": seed, **kept}
        if problems := list(_problems(options)):
            raise ConfigurationError(problems)
        dtypes = {name: _dtype(value) for name, value in kept.items()}
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, **options, **dtypes}
        super().__init__(params, defaults)
        parameters = [each for group in self.param_groups for each in group["params"]]
        if rounding == STOCHASTIC:
            _refuse_stochastic_rounding(parameters)
        _remark(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient. closure: computes the loss again; its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = 0
        for group in self.param_groups:
            numbered = enumerate(group["params"], first)
            held = [self._slot(number, each, group) for number, each in numbered if each.grad is not None]
            first += len(group["params"])
            for chunk in _chunks(held):
                _update(chunk, group)
        return loss

    def _slot(self, number: int, parameter: Any, group: Group) -> Slot:
        """Return a parameter with its state, which is made in its first step and counts this one."""
        if parameter.grad.is_sparse:
            raise ConfigurationError("adamw_anyprecision does not take sparse gradients; choose adamw_torch.")
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter, dtype=group["momentum_dtype"])
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=group["variance_dtype"])
            if group["use_kahan_summation"] and parameter.dtype in HALVES:
                state["compensation"] = torch.zeros_like(parameter, dtype=group["compensation_buffer_dtype"])
        state["step"] += 1
        return Slot(
            number,
            state["step"],
            _local(parameter),
            _local(parameter.grad),
            _local(state["exp_avg"]),
            _local(state["exp_avg_sq"]),
            _local(state["compensation"]) if "compensation" in state else None,
            _shard(parameter),
        )


@frozen
class Slot:
    """A parameter in an update. The tensors are those of this process, if they are sharded.

    number: of the parameter among all. steps: its updates with this one. shard: which part of it this process holds.
    """

    number: int
    steps: int
    parameter: Tensor
    gradient: Tensor
    momentum: Tensor
    variance: Tensor
    compensation: Tensor | None
    shard: tuple[int, ...]


def _local(tensor: Tensor) -> Tensor:
    """Return this process's elements, as a view."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shard(parameter: Tensor) -> tuple[int, ...]:
    """Return this process's place in the dimensions of the mesh over which a parameter is sharded."""
    if not isinstance(parameter, DTensor):
        return ()
    places = parameter.device_mesh.get_coordinate() or ()
    pairs = zip(places, parameter.placements, strict=True)
    return tuple(place for place, placement in pairs if isinstance(placement, Shard))


def _chunks(held: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield runs of parameters of one type on one device with at most CHUNK elements, or one parameter with more."""
    chunk: list[Slot] = []
    elements = 0
    for slot in held:
        fits = chunk and _kind(chunk[0]) == _kind(slot) and elements + slot.parameter.numel() <= CHUNK
        if chunk and not fits:
            yield chunk
            chunk, elements = [], 0
        chunk.append(slot)
        elements += slot.parameter.numel()
    if chunk:
        yield chunk


def _kind(slot: Slot) -> tuple[torch.dtype, torch.device]:
    return slot.parameter.dtype, slot.parameter.device


def _update(slots: list[Slot], group: Mapping[str, Any]) -> None:
    """Update the moments and the parameters of one chunk."""
    beta1, beta2 = group["betas"]
    parameters, gradients = [slot.parameter for slot in slots], [slot.gradient for slot in slots]
    momenta, variances = [slot.momentum for slot in slots], [slot.variance for slot in slots]
    torch._foreach_lerp_(momenta, _as(gradients, group["momentum_dtype"]), 1 - beta1)
    of_variance = _as(gradients, group["variance_dtype"])
    torch._foreach_mul_(variances, beta2)
    torch._foreach_addcmul_(variances, of_variance, of_variance, 1 - beta2)

    precise = torch.promote_types(parameters[0].dtype, torch.float32)
    roots = torch._foreach_sqrt(_as(variances, precise))
    torch._foreach_div_(roots, [sqrt(1 - beta2**slot.steps) for slot in slots])
    torch._foreach_add_(roots, group["eps"])
    updates = torch._foreach_div(_as(momenta, precise), roots)
    torch._foreach_div_(updates, [beta1**slot.steps - 1 for slot in slots])  # of minus the update
    before = _as(parameters, precise)
    if group["weight_decay"] != 0:
        torch._foreach_add_(updates, before, alpha=-group["weight_decay"])
    torch._foreach_mul_(updates, group["lr"])

    if parameters[0].dtype == precise:
        torch._foreach_add_(parameters, updates)
        return
    compensations = [slot.compensation for slot in slots if slot.compensation is not None]
    if compensations:
        torch._foreach_add_(updates, _as(compensations, precise))
        torch._foreach_copy_(parameters, torch._foreach_add(before, updates))
        torch._foreach_sub_(before, _as(parameters, precise))  # minus what was added
        torch._foreach_copy_(compensations, torch._foreach_add(updates, before))
        return
    torch._foreach_add_(updates, before)
    rounds = group["rounding"] == STOCHASTIC
    torch._foreach_copy_(parameters, _rounded(updates, _generator(slots, group["seed"])) if rounds else updates)


def _as(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors in a type: themselves if they have it, else copies."""
    return [tensor.to(dtype) for tensor in tensors]


# Stochastic rounding


def stochastically_rounded(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return float32 numbers in bfloat16, rounded up or down at random so that the mean of many draws is the number.

    bfloat16 is the upper half of float32. A random number in the place of the lower half carries into the upper one
    with the probability that the lower half is of the distance between two numbers of bfloat16. Numbers that are not
    finite stay as they are.
    """
    bits = torch.randint(1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    carried = bits.add_(values.view(torch.int32)).bitwise_and_(-(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite(), carried, values).to(torch.bfloat16)


def _rounded(values: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Return tensors of float32 numbers, rounded with bits that are drawn for all of them at once."""
    flat = stochastically_rounded(torch.cat([each.reshape(-1) for each in values]), generator)
    pieces = torch.split(flat, [each.numel() for each in values])
    return [piece.view(each.shape) for piece, each in zip(pieces, values, strict=True)]


def _generator(slots: list[Slot], seed: int) -> torch.Generator:
    """Return a generator for a chunk: another one for each seed, step, parameter and shard, the same on all replicas.

    It has no state beyond the step, which checkpoints have.
    """
    first = slots[0]
    described = ",".join(map(str, (seed, first.steps, first.number, *first.shard)))
    generator = torch.Generator(first.parameter.device)
    generator.manual_seed(int.from_bytes(blake2b(described.encode(), digest_size=7).digest()))
    return generator


# What does not fit


def _problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("momentum_dtype", "variance_dtype", "compensation_buffer_dtype"):
        if _dtype(options[name]) is None:
            yield _problem(f"{name}={options[name]}", f"it takes {', '.join(FORMATS)}", "choose one of these")
    if options["rounding"] not in (NEAREST, STOCHASTIC):
        yield _problem(
            f"rounding={options['rounding']}", "there is no such rounding", f"choose {NEAREST} or {STOCHASTIC}"
        )
    elif options["rounding"] == STOCHASTIC and options["use_kahan_summation"]:
        yield _problem(
            "use_kahan_summation=True with rounding=stochastic",
            "each keeps what rounding to the nearest number loses",
            "leave one of them out",
        )
    if type(options["seed"]) is not int:
        yield _problem(f"seed={options['seed']}", "it takes a whole number", "give one")


def _problem(given: str, because: str, remedy: str) -> Problem:
    return Problem(f"You chose the option {given} of adamw_anyprecision, but {because}; {remedy}.", ("optim_args",))


def _dtype(value: Any) -> torch.dtype | None:
    """Return a type, given as such or by name; None if moments cannot be kept in it."""
    found = FORMATS.get(value.removeprefix("torch.")) if isinstance(value, str) else value
    return found if found in FORMATS.values() else None


def _refuse_stochastic_rounding(parameters: Iterable[Tensor]) -> None:
    """Raise ConfigurationError if the parameters cannot be rounded at random."""
    for parameter in parameters:
        if parameter.dtype == torch.float16:
            raise ConfigurationError(
                _problem(
                    "rounding=stochastic",
                    "the model has weights in float16, and it rounds to bfloat16",
                    "load the model in bfloat16, or set use_kahan_summation=True",
                )
            )
    for device in {parameter.device for parameter in parameters if not parameter.is_meta}:
        try:
            torch.Generator(device)
        except RuntimeError as error:
            raise ConfigurationError(
                _problem(
                    "rounding=stochastic",
                    f"torch has no random generator that could be seeded for each step on the device {device.type}",
                    "set use_kahan_summation=True",
                )
            ) from error


def _remark(parameters: Iterable[Tensor], options: Mapping[str, Any]) -> None:
    """Log what the options mean for parameters of this type, if that is not what the name promises."""
    if not any(parameter.dtype in HALVES for parameter in parameters):
        logging.getLogger("hexloop").warning(
            "optim='adamw_anyprecision' updates weights of 32 bits as adamw_torch does. To train in bfloat16 alone, "
            "load the model in it, as with from_pretrained(..., dtype=torch.bfloat16)."
        )
    elif not options["use_kahan_summation"] and options["rounding"] == NEAREST:
        logging.getLogger("hexloop").warning(
            "optim='adamw_anyprecision' rounds weights of 16 bits to the nearest number, which loses small updates. "
            "Set optim_args='use_kahan_summation=True' or 'rounding=stochastic' to keep them."
        )
