"""Training in fp8 by torchao: linear layers scale their operands in every step, and multiply them in 8 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from hexloop.adapters.precision.fp8 import Fp8Precision, chosen_layers, replace_layers
from hexloop.domain.errors import ConfigurationError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class TorchaoPrecision(Fp8Precision):
    """Precision adapter over torchao's float8 training.

    The weights and their gradients stay what they are; a layer converts them whenever it multiplies. A converted model
    stays converted: its layers are of a class of torchao, with the names and the weights that they had.

    Args:
        device_type: the kind of the device, such as "cuda".
        options: as in `hexloop.app.arguments.formats`.
        emulates: multiply in float32 what was rounded to 8 bits, on devices without products of 8 bits.
        gathers: the model will be sharded, and its weights may be gathered in 8 bits.
    """

    def __init__(
        self, device_type: str, options: Mapping[str, Any] | None = None, emulates: bool = False, gathers: bool = False
    ) -> None:
        super().__init__(device_type)
        self._options, self._emulates, self._gathers = dict(options or {}), emulates, gathers
        self._gathered: Any = None  # the model, if its weights are gathered in 8 bits

    def convert(self, model: Any) -> None:
        """Convert the model's linear layers in place, unless they are converted.

        Raises:
            ConfigurationError: if it has no layer to convert, or if they are converted with other options.
        """
        from torchao.float8.float8_linear import Float8Linear

        config = self._config()
        present = [module for module in model.modules() if isinstance(module, Float8Linear)]
        if not present:
            self._convert(model, config)
        elif any(layer.config != config for layer in present):
            raise ConfigurationError(
                f"The layers of the {type(model).__name__} compute in fp8 with other options than those of this run, "
                "from an earlier run or your own conversion. Load the model again, or choose the same options. To "
                "train layers that you converted yourself as they are, set bf16=True instead of fp8."
            )
        self._gathered = model if config.enable_fsdp_float8_all_gather else None

    def for_accelerate(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the keywords of accelerate's recipe for torchao."""
        return "AORecipeKwargs", {
            "config": self._config(),
            "module_filter_func": self._options.get("module_filter_func"),
        }

    def _convert(self, model: nn.Module, config: Any) -> None:
        from torchao.float8 import convert_to_float8_training

        choose = self._options.get("module_filter_func")
        layers = chosen_layers(
            model,
            self._options.get("excluded_modules", ()),
            choose,
            tied=not config.enable_fsdp_float8_all_gather,  # which gives each layer a parameter of its own
        )

        def convert(layer: nn.Linear) -> nn.Module:
            made: nn.Module = convert_to_float8_training(nn.ModuleList([layer]), config=config)[0]
            return made

        for layer in replace_layers(model, layers, convert):
            if config.emulate:
                layer.register_forward_pre_hook(_in_autocast_format)

    def _config(self) -> Any:
        """Return torchao's configuration."""
        from torchao.float8 import Float8LinearConfig, ScalingGranularity

        options, given = self._options, self._options.get("config")
        made = given or Float8LinearConfig.from_recipe_name(options.get("recipe", "tensorwise"))
        by_tensor = made.cast_config_weight.scaling_granularity is ScalingGranularity.TENSORWISE
        gathers = made.enable_fsdp_float8_all_gather if given else by_tensor
        return dataclasses.replace(
            made,
            pad_inner_dim=options.get("pad_inner_dim", made.pad_inner_dim if given else True),
            emulate=made.emulate or self._emulates,
            enable_fsdp_float8_all_gather=self._gathers and options.get("enable_fsdp_float8_all_gather", gathers),
        )

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass under autocast; first, all weights that are gathered in 8 bits get their scales.

        That takes one reduction over the processes, instead of one for each layer. It is due after each update, and
        after weights were loaded.
        """
        under_autocast = super().wrap(forward)
        if not self._gathers:
            return under_autocast

        @wraps(forward)
        def with_scales(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if self._gathered is not None:
                _compute_scales(self._gathered)
            return under_autocast(*args, **kwargs)

        return with_scales


def _compute_scales(model: nn.Module) -> None:
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(model)


def _in_autocast_format(_layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the input of a layer as autocast would, which torchao's layers do on one kind of device only."""
    if not (inputs and isinstance(inputs[0], Tensor)):
        return inputs
    first, *others = inputs
    kind = first.device.type
    return (first.to(torch.get_autocast_dtype(kind)), *others) if torch.is_autocast_enabled(kind) else inputs
