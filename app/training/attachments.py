"""What a run attaches to its model, and takes off again at its end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from hexloop.adapters.trainable.torch.model_patches import OverflowWatch, PastOutputs, add_embedding_noise
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import DebugOption
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import AnyEvent, EpochBegan

Observer: TypeAlias = Mapping[type[AnyEvent], Callable[[Any], None]]
"""What is called at events of these types."""

PredictionStep: TypeAlias = Callable[..., Any]
"""From a model and a batch to the loss, the logits and the labels."""


@contextmanager
def attached(args: TrainingArguments, model: Any) -> Iterator[list[Observer]]:
    """Kernels, noise on embeddings, a watch for overflows, a memory: each where the arguments ask for it.

    Inside, those that want to be told of the run's events.

    Raises ConfigurationError where the model has no place for one, or a package is missing.
    """
    observers: list[Observer] = []
    with ExitStack() as attachments:
        if args.use_liger_kernel:
            apply_liger_kernels(model, args.liger_kernel_config)
        if args.neftune_noise_alpha is not None:
            attachments.callback(add_embedding_noise(model, args.neftune_noise_alpha))
        if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
            attachments.callback(OverflowWatch().watch(model))
        if args.past_index >= 0:
            past = PastOutputs(args.past_index, training=True)
            attachments.callback(past.attach(model))
            observers.append({EpochBegan: lambda _: past.forget()})
        yield observers


def with_past(index: int, step: PredictionStep) -> PredictionStep:
    """A prediction step that hands the model's memory from each batch to the next."""
    past = PastOutputs(index, training=False)

    def predict(model: Any, *values: Any, **named: Any) -> Any:
        remove = past.attach(model)
        try:
            return step(model, *values, **named)
        finally:
            remove()

    return predict


def apply_liger_kernels(model: Any, choice: dict[str, bool] | None) -> None:
    """Let the layers of a transformers model be computed by the liger-kernel package's; they stay so.

    choice: which layers, by the package's own names. Raises ConfigurationError where the package is not installed, or
    the model is none of transformers'.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # what a PEFT wrapper wraps
    problem = None
    if importlib.util.find_spec("liger_kernel") is None:
        problem = "the package liger-kernel is not installed; pip install liger-kernel"
    elif getattr(getattr(inner, "config", None), "model_type", None) is None:
        problem = f"{type(inner).__name__} is no model of transformers, whose layers alone it knows; leave it out"
    if problem is not None:
        raise ConfigurationError([f"You chose use_liger_kernel=True, but {problem}."])
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=inner, **(choice or {}))
