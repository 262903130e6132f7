"""What the precisions of 8 bits share: bf16 around the layers that multiply in 8 bits, and which layers these are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn

from hexloop.adapters.precision.autocast import Bf16Precision
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import enumeration
from hexloop.ports.learner import Optimizer
from hexloop.ports.state import Part

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

MULTIPLE = 16
"""Products of 8 bits need matrices whose dimensions are multiples of this."""

Choice = Callable[[nn.Module, str], bool]
"""From a module and its name to whether it is converted."""


class Fp8Precision:
    """Base of the precisions of 8 bits, which have a method `convert`.

    All that is not converted computes in bf16, and the loss is not scaled.

    Args:
        device_type: the kind of the device, such as "cuda".
    """

    name = "fp8"

    def __init__(self, device_type: str) -> None:
        self._around = Bf16Precision(device_type)

    def for_accelerate(self) -> tuple[str, dict[str, Any]]:
        """Return the name of accelerate's class of such a recipe, and the keywords with which to make one."""
        raise NotImplementedError

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass under autocast."""
        return self._around.wrap(forward)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss unchanged."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """No-op: gradients are not scaled."""

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer and return True."""
        return self._around.step(optimizer)

    def discard_update(self) -> None:
        """No-op: nothing is scaled."""

    def export(self) -> Iterator[Part]:
        """Return no parts: scales are computed from the tensors of each step."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """No-op: there is no state."""


def chosen_layers(
    model: nn.Module, excluded: Collection[str] = (), choose: Choice | None = None, tied: bool = True
) -> dict[str, nn.Linear]:
    """Return the layers to convert, by name: `torch.nn.Linear` without changes of its own, by `choose` or the rule.

    The rule, which is accelerate's: dimensions that are multiples of 16, and neither the first nor the last linear
    layer, whose errors harm training most. excluded: names of further modules to leave out, with or without the modules
    around them. tied: also layers that share a weight with another module.

    Raises ConfigurationError if no layer is left, or an excluded name is that of no linear layer.
    """
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    ends = [*linear.values()][:1] + [*linear.values()][-1:]
    holders = _holders(model)

    def is_chosen(name: str, layer: nn.Linear) -> bool:
        if not tied and len(holders[id(layer.weight)]) > 1:
            return False
        if choose is not None:
            return choose(layer, name)
        fits = layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0
        return fits and not any(layer is end for end in ends) and not any(_is_within(name, each) for each in excluded)

    named = model.named_modules(remove_duplicate=False)
    plain = {name: module for name, module in named if type(module) is nn.Linear and _is_unchanged(module)}
    found = {name: layer for name, layer in plain.items() if is_chosen(name, layer)}
    if unknown := [each for each in excluded if not any(_is_within(name, each) for name in linear)]:
        raise ConfigurationError(
            f"You chose excluded_modules={list(excluded)} in fp8, but the model has no linear layer in "
            f"{enumeration(map(repr, unknown), 'or')}; choose among the names of model.named_modules()."
        )
    if not found:
        raise ConfigurationError(
            f"You chose fp8, but {type(model).__name__} has no layer for it. Of its {len(linear)} layers of the class "
            f"torch.nn.Linear, the first and the last stay as they are, and so do those that have dimensions that are "
            f"not multiples of {MULTIPLE}, that are excluded, or that were changed. Train in bf16, or choose the "
            "layers by the module_filter_func of accelerate's AORecipeKwargs."
        )
    return found


def _is_within(name: str, part: str) -> bool:
    """Return whether a module's name contains a part, which is made of whole components."""
    return f".{part}." in f".{name}."


def _is_unchanged(layer: nn.Linear) -> bool:
    """Return whether a layer computes what its class says, from weights of torch's own class."""
    weight: Any = layer._parameters.get("weight")
    return (
        "forward" not in vars(layer)
        and layer._parameters.keys() == {"weight", "bias"}
        and not layer._buffers
        and type(weight) is nn.Parameter
        and type(weight.data) is Tensor
        and weight.is_floating_point()
    )


def _holders(model: nn.Module) -> Mapping[int, set[int]]:
    """Return the modules that have each parameter of the model, all by identity."""
    found: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            found.setdefault(id(parameter), set()).add(id(module))
    return found


def replace_layers(
    model: nn.Module, layers: Mapping[str, nn.Linear], convert: Callable[[nn.Linear], nn.Module]
) -> list[nn.Module]:
    """Put what `convert` returns in the place of each layer, with the layer's hooks, mode and attributes; return them.

    A layer with several names is converted once.
    """
    made: dict[int, nn.Module] = {}
    for name, layer in layers.items():
        if id(layer) not in made:
            made[id(layer)] = _with_attributes(layer, convert(layer))
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, made[id(layer)])
    return list(made.values())


def _with_attributes(layer: nn.Module, converted: nn.Module) -> nn.Module:
    own = {"_parameters", "_buffers", "_modules"}
    vars(converted).update({name: value for name, value in vars(layer).items() if name not in own})
    return converted
