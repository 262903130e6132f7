"""Bringing a model to its device, with what the arguments ask of its memory."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device


def place_model(model: Any, args: TrainingArguments, device: Device) -> Any:
    """The model, moved to `device` unless the arguments forbid it or the model is spread over devices already.

    Raises ConfigurationError where activation checkpointing is asked of a model that cannot do it.
    """
    if args.gradient_checkpointing:
        enable = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise ConfigurationError(
                [
                    f"You chose gradient_checkpointing=True, but {type(model).__name__} has no method "
                    "gradient_checkpointing_enable; give it one, or set gradient_checkpointing=False."
                ]
            )
        enable(gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs)
    config: Any = getattr(model, "config", None)
    if not args.use_cache and hasattr(config, "use_cache"):
        config.use_cache = False
    placed_already = getattr(model, "hf_device_map", None) is not None
    if args.place_model_on_device is not False and not placed_already:
        model.to(device.name)
    return model
