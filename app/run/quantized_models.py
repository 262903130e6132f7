"""Models whose weights are quantized: which can be trained, and what must not be done with them."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.framework import Framework
from hexloop.domain.errors import ConfigurationError

BITSANDBYTES = "bitsandbytes"
"""The method whose weights stay on the device that they were quantized for."""


def refuse_untrainable_model(model: Any, framework: Framework[Any], args: TrainingArguments) -> None:
    """Raise ConfigurationError for a quantized model that cannot be trained, as transformers does.

    Its weights are not parameters that an optimizer can change, so nearly all of it would stay as it is. Trainable are
    quantized models with adapters, and those of a method that supports quantization-aware training. With
    `torch_compile`, methods are refused whose layers cannot be compiled.
    """
    if not getattr(model, "is_quantized", False):
        return
    quantizer = getattr(model, "hf_quantizer", None)
    method = quantization_method(model)
    if args.torch_compile and not getattr(quantizer, "is_compileable", False):
        raise ConfigurationError(
            f"The model is quantized ({method}) and torch_compile=True, but layers of this method cannot be compiled; "
            "set torch_compile=False."
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        return
    if hasattr(model, "_orig_mod"):
        problem = (
            f"The model is quantized ({method}) and compiled, and a compiled quantized model cannot be trained; pass "
            "the model without torch.compile."
        )
    elif not framework.weights(model).has_adapters and not getattr(quantizer, "is_qat_trainable", False):
        problem = (
            f"The model is quantized ({method}) and has no trainable adapters, so its quantized weights would not be "
            "trained; add adapters, with peft.get_peft_model(model, LoraConfig(...)) or model.add_adapter(...), or "
            "load the model without quantization."
        )
    elif not getattr(quantizer, "is_trainable", False):
        problem = (
            f"The model is quantized by a method that does not support training ({method}), with adapters or without; "
            "quantize it by another, such as bitsandbytes, or load it without quantization."
        )
    else:
        return
    raise ConfigurationError(problem)


def quantization_method(model: Any) -> str:
    """Return the name of the method by which a model is quantized, as its configuration has it."""
    configuration = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    method = getattr(configuration, "quant_method", None) or getattr(model, "quantization_method", None)
    return str(getattr(method, "value", method) or "by an unknown method")


def stays_on_its_device(model: Any) -> bool:
    """Return whether a model must not be moved: bitsandbytes quantizes for one device."""
    return bool(getattr(model, "is_quantized", False)) and quantization_method(model).startswith(BITSANDBYTES)


def cannot_be_replicated(model: Any) -> bool:
    """Return whether a model cannot be copied to several devices of a process, as DataParallel does in every step."""
    return bool(getattr(model, "is_loaded_in_8bit", False) or getattr(model, "is_loaded_in_4bit", False))
