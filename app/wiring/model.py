"""The model of a run: its device, its memory options, and the patches that last as long as the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

from attrs import evolve

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.trainable.torch import forward
from hexloop.adapters.trainable.torch.forward_hooks import OverflowWatch, PastOutputs, add_embedding_noise
from hexloop.adapters.trainable.torch.special_tokens import align_special_tokens
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import DebugOption
from hexloop.app.engines import engine_for
from hexloop.app.joining import join
from hexloop.app.wiring.adapters import Adapters
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import AnyEvent, EpochBegan
from hexloop.ports.device import Device

Observer: TypeAlias = Mapping[type[AnyEvent], Callable[[Any], None]]
"""Functions to call at events of these types."""

PredictionStep: TypeAlias = Callable[..., Any]
"""From a model and a batch to the loss, the logits and the labels."""


def place_model(model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
    """Apply the memory options of the arguments to a model, move it to `device` if `moves`, and return it.

    Raises ConfigurationError if the model does not support activation checkpointing and it is required.
    """
    if args.activation_checkpointing:
        _checkpoint_activations(model, args.activation_checkpointing_kwargs)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.use_cache = args.use_cache
    if moves:
        model.to(device.name)
    return model


def disable_replication(adapters: Adapters, args: TrainingArguments) -> None:
    """Train on one device of this process, for a model that cannot be replicated on all of them."""
    if adapters.parallelism.capabilities.several_devices:
        adapters.parallelism = SingleProcess()
        args.surroundings = evolve(args.surroundings, n_gpu=1)


def takes_any_keyword(model: Any) -> bool:
    """Return whether forward takes any keyword, and so the number of items, or the model declares that it does."""
    return forward.takes_any_keyword(model)


def returns_loss_by_default(model: Any) -> bool:
    """Return whether forward computes a loss without labels."""
    return forward.returns_loss_by_default(model)


def default_label_names(model: Any, has_own_loss: bool) -> list[str]:
    """Return the inputs that are labels if the arguments do not name them: those of forward, or of a separate loss."""
    return forward.default_label_names(model, has_own_loss)


@contextmanager
def patched(model: Any, args: TrainingArguments, processing_class: Any) -> Iterator[list[Observer]]:
    """Align special tokens, and apply the patches that the arguments require for the length of the block.

    Patches are liger kernels (these stay), noise on embeddings, a watch for overflows, and past outputs.
    Yields the event handlers of the patches. Raises ConfigurationError if the model does not support a patch, or a
    package is missing.
    """
    align_special_tokens(model, processing_class)
    observers: list[Observer] = []
    with ExitStack() as patches:
        if args.use_liger_kernel:
            apply_liger_kernels(model, args.liger_kernel_config)
        if args.neftune_noise_alpha is not None:
            patches.callback(add_embedding_noise(model, args.neftune_noise_alpha))
        if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
            patches.callback(OverflowWatch().watch(model))
        if args.past_index >= 0:
            past = PastOutputs(args.past_index, training=True)
            patches.callback(past.attach(model))
            observers.append({EpochBegan: lambda _: past.forget()})
        yield observers


def with_past(index: int, step: PredictionStep) -> PredictionStep:
    """Return a prediction step that passes the model's past outputs from each batch to the next."""
    past = PastOutputs(index, training=False)

    def predict(model: Any, *values: Any, **named: Any) -> Any:
        remove = past.attach(model)
        try:
            return step(model, *values, **named)
        finally:
            remove()

    return predict


def apply_liger_kernels(model: Any, choice: dict[str, bool] | None) -> None:
    """Replace the layers of a transformers model by those of the package liger-kernel, permanently.

    choice: which layers, by the package's own names. Raises ConfigurationError if the package is not installed, or the
    model is not one of transformers'.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # what a PEFT wrapper wraps
    problem = None
    if importlib.util.find_spec("liger_kernel") is None:
        problem = "needs the package liger-kernel, which is not installed; pip install liger-kernel"
    elif getattr(getattr(inner, "config", None), "model_type", None) is None:
        problem = f"needs a model of transformers, but the model is a {type(inner).__name__}; remove the option"
    if problem is not None:
        raise ConfigurationError([f"use_liger_kernel=True {problem}."])
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=inner, **(choice or {}))


def _checkpoint_activations(model: Any, options: Any) -> None:
    """Enable activation checkpointing, by the method's current or its earlier name.

    `every_n_layers` and `offload` are the method's own options; the others are those of torch's `checkpoint`.
    """
    torch_options = dict(options or {})
    own = {name: torch_options.pop(name) for name in ("every_n_layers", "offload") if name in torch_options}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=torch_options or None, **own)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=torch_options or None, **own)
    else:
        raise ConfigurationError(
            [
                f"activation_checkpointing=True needs a model with a method activation_checkpointing_enable, which "
                f"{type(model).__name__} does not have; add the method, or set activation_checkpointing=False."
            ]
        )


@contextmanager
def zero3_init(args: TrainingArguments) -> Iterator[None]:
    """Partition the parameters of every module over the processes as it is created, if ZeRO 3 is chosen.

    Every process draws the same weights as without it, those of one module at a time. Create transformers' models by
    `from_pretrained` or `from_config` in this context, because their own classes initialize weights once the whole
    model exists. If ZeRO 3 is not chosen, nothing happens. Collective. Raises ConfigurationError for an invalid
    DeepSpeed configuration.
    """
    with engine_for(args).sharded_init(args, partial(join, args)):
        yield
