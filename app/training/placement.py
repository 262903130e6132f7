"""Bringing a model to its device, with what the arguments ask of its memory."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device


def place_model(model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
    """The model, moved to `device` where it `moves`.

    Raises ConfigurationError where activation checkpointing is asked of a model that cannot do it.
    """
    if args.activation_checkpointing:
        _checkpoint_activations(model, args.activation_checkpointing_kwargs)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.use_cache = args.use_cache
    if moves:
        model.to(device.name)
    return model


def _checkpoint_activations(model: Any, options: Any) -> None:
    """Let the model recompute activations, by the method's present name or by its former one.

    `every_n_layers` and `offload` are the method's own options; the others are those of torch's `checkpoint`.
    """
    further = dict(options or {})
    own = {name: further.pop(name) for name in ("every_n_layers", "offload") if name in further}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=further or None, **own)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=further or None, **own)
    else:
        raise ConfigurationError(
            [
                f"You chose activation_checkpointing=True, but {type(model).__name__} has no method "
                "activation_checkpointing_enable; give it one, or set activation_checkpointing=False."
            ]
        )
