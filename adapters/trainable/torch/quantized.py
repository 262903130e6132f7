"""The weights of quantized models: which of them an engine can divide over processes."""

from __future__ import annotations

from torch import nn

from hexloop.domain.errors import ConfigurationError

BITSANDBYTES = "Params4bit", "Int8Params"
"""The classes of the parameters of bitsandbytes."""

FLOAT8 = "torchao.float8."
"""The package whose weights are whole, and only multiplied in 8 bits."""


def quantized_classes(model: nn.Module) -> set[str]:
    """Return the names of the classes of a model's quantized parameters."""
    found = set[str]()
    for parameter in model.parameters():
        if type(parameter).__name__ in BITSANDBYTES:
            found.add(type(parameter).__name__)
            continue
        module = type(parameter.data).__module__
        if module.startswith("torchao.") and not module.startswith(FLOAT8):
            found.add(type(parameter.data).__name__)
    return found


def refuse_divided_quantization(model: nn.Module, engine: str) -> None:
    """Raise ConfigurationError if an engine would divide quantized weights, whose layers need them whole."""
    if found := quantized_classes(model):
        raise ConfigurationError(
            f"{engine} cannot divide the quantized weights of this model ({', '.join(sorted(found))}) over processes; "
            "train with DDP or ZeRO 2, which leave the base whole, or load the base without quantization."
        )


def changed_by_layers(model: nn.Module) -> set[str]:
    """Return the names of the frozen tensors that a forward pass may convert: the biases of layers of bitsandbytes."""
    return {
        f"{path}.bias"
        for path, module in model.named_modules()
        if type(getattr(module, "weight", None)).__name__ in BITSANDBYTES and hasattr(module, "bias")
    }
