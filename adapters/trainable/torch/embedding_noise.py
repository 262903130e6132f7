"""Noise on a model's input embeddings while it trains (NEFTune, Jain et al. 2023, arXiv 2310.05914)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hexloop.domain.errors import ConfigurationError


def add_embedding_noise(model: nn.Module, alpha: float) -> Callable[[], None]:
    """Add uniform noise to the output of the model's input embeddings, in training mode only; gives what ends that.

    For embeddings of shape (batch, length, size) it lies within alpha / sqrt(length * size), as in the paper's
    section 2, and comes from torch's stream of their device, so that it is part of the run's state. Neither the
    weights nor the module's attributes change.
    Raises ConfigurationError where the model does not say which module its input embeddings are.
    """
    embeddings = _input_embeddings(model)

    def add(module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        if not module.training:
            return output
        bound = float(alpha / torch.sqrt(torch.tensor(output.shape[-2] * output.shape[-1])))
        return output + torch.empty_like(output).uniform_(-bound, bound)

    return embeddings.register_forward_hook(add).remove


def _input_embeddings(model: nn.Module) -> nn.Module:
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT wrapper
        inner = inner.get_base_model()
    find: Any = getattr(inner, "get_input_embeddings", None)
    found = find() if find is not None else None
    if not isinstance(found, nn.Module):
        raise ConfigurationError(
            [
                f"You chose neftune_noise_alpha, but {type(inner).__name__} does not say which module its input "
                "embeddings are; give it a method get_input_embeddings, or leave the argument out."
            ]
        )
    return found
