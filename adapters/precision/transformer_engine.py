"""Training in fp8 by NVIDIA's Transformer Engine: linear layers scale their operands by maxima of earlier steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from hexloop.adapters.precision.fp8 import Fp8Precision, chosen_layers, replace_layers
from hexloop.domain.errors import ConfigurationError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class TransformerEnginePrecision(Fp8Precision):
    """Precision adapter over Transformer Engine, by the calls that accelerate makes.

    A converted model stays converted. Its layers have the names and the weights that they had. The maxima from which
    they compute their scales are not part of checkpoints, because the package keeps them as a pickle: a resumed run
    collects them again.

    Args:
        device_type: the kind of the device, such as "cuda".
        options: as in `hexloop.app.arguments.formats`. By default, evaluations compute in bf16.
    """

    def __init__(self, device_type: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(device_type)
        self._options = dict(options or {})
        self._in_evaluation = self._options.pop("use_autocast_during_eval", False)
        self._model: nn.Module | None = None
        self._recipe: Any = None

    def convert(self, model: Any) -> None:
        """Convert the model's linear layers in place, unless they are converted. It has to be on its device.

        Raises:
            ConfigurationError: if it has no layer to convert, or if the device lacks what the options ask for.
        """
        linear = _linear_class()
        if not any(isinstance(module, linear) for module in model.modules()):
            replace_layers(model, chosen_layers(model, tied=False), lambda layer: _convert(layer, linear))
        if self._recipe is None:
            self._recipe = _recipe(self._options)
        self._model = model

    def for_accelerate(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the keywords of accelerate's recipe for Transformer Engine."""
        return "TERecipeKwargs", {**self._options, "use_autocast_during_eval": self._in_evaluation}

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass under autocast of both kinds, in 8 bits only while the model is in training mode."""

        @wraps(forward)
        def in_8_bits(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            from transformer_engine.pytorch import fp8_autocast

            trains = self._model is None or self._model.training
            with fp8_autocast(enabled=trains or self._in_evaluation, fp8_recipe=self._recipe):
                return forward(*args, **kwargs)

        return super().wrap(in_8_bits)


def _linear_class() -> type[Any]:
    """Return the package's linear layer without its extra state, which is a pickle."""
    from transformer_engine import pytorch as engine

    if (found := _LINEAR.get(engine.Linear)) is None:
        without = {"get_extra_state": nn.Module.get_extra_state, "set_extra_state": nn.Module.set_extra_state}
        found = _LINEAR[engine.Linear] = type("Linear", (engine.Linear,), without)
    return found


_LINEAR: dict[type[Any], type[Any]] = {}


def _convert(layer: nn.Linear, linear: type[Any]) -> nn.Module:
    made: nn.Module = linear(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        params_dtype=layer.weight.dtype,
        device=layer.weight.device,
    )
    with torch.no_grad():
        for name, own in layer.named_parameters():
            parameter = made.get_parameter(name)
            parameter.copy_(own)
            parameter.requires_grad_(own.requires_grad)
    return made


def _recipe(options: Mapping[str, Any]) -> Any:
    """Return the package's recipe. Raises ConfigurationError if the device lacks what it needs."""
    from transformer_engine.common import recipe as recipes

    given = {name: value for name, value in options.items() if name != "use_mxfp8_block_scaling"}
    if "fp8_format" in given:
        given["fp8_format"] = getattr(recipes.Format, given["fp8_format"])
    if not options.get("use_mxfp8_block_scaling"):
        return recipes.DelayedScaling(**given)
    from transformer_engine.pytorch.fp8 import check_mxfp8_support

    supported, reason = check_mxfp8_support()
    if not supported:
        raise ConfigurationError(
            f"You chose use_mxfp8_block_scaling in fp8, but the device cannot scale blocks ({reason}); leave it out."
        )
    return recipes.MXFP8BlockScaling(**given)
