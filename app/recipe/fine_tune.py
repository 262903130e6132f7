"""The section `fine_tune` of a recipe: what is fine-tuned, through which adapters, and how samples become tokens.

Its keys are the parameters of SFTTrainer that no other section has, and the arguments that only fine-tuning has, which
could as well be among the `arguments`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.declaration import GROUP
from hexloop.app.arguments.documents import Document, KeyPath, SourceLocation
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.arguments.losses import LossArguments
from hexloop.app.arguments.packing import PackingArguments
from hexloop.app.recipe.parts import CALL, PartKind, PartReader, RecipePart
from hexloop.domain.installation import how_to_install
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, problem

FINE_TUNE = "fine_tune"
"""The key of the section."""

MODEL = "model"

SECTION_PARTS = {
    MODEL: PartKind.OBJECT,
    "peft_config": PartKind.OBJECT,
    "quantization_config": PartKind.OBJECT,
    "formatting_func": PartKind.FUNCTION,
}
"""The keys of the section that are parameters of SFTTrainer."""

SECTION_ARGUMENTS = tuple(
    name
    for group in (SFTConfig, PackingArguments, LossArguments)
    for name in vars(group)[GROUP]
    if group is not SFTConfig or name not in TrainingArguments.__dataclass_fields__
)
"""The keys of the section that are arguments."""

KNOWN_BITS = ("load_in_4bit", "load_in_8bit")
"""Keys of a `quantization_config` that bitsandbytes has, and no other method."""


def read_section(reader: PartReader, arguments: str) -> Iterator[tuple[str, RecipePart]]:
    """Yield the parts of the section, and put its arguments among those at the key `arguments` of the document.

    Problems are added to the document's.
    """
    document = reader.document
    section = document.at((FINE_TUNE,))
    if section is None:
        return
    if not isinstance(section, Mapping):
        refusal = RefusalError("it takes a mapping", "put its keys on lines of their own, indented")
        document.problems.append(document.located([(FINE_TUNE,)], problem({FINE_TUNE: section}, refusal)))
        return
    for name in list(section):
        path = (FINE_TUNE, name)
        if name in SECTION_PARTS and section[name] is None:
            continue
        if name in SECTION_PARTS:
            yield name, _READ.get(name, _read_part)(reader, path, SECTION_PARTS[name])
        elif name in SECTION_ARGUMENTS:
            _move_argument(document, name, arguments)
        else:
            document.problems.append(document.located([path], _unknown(name, section[name], arguments)))


def _unknown(name: object, value: object, arguments: str) -> str:
    if name in SFTConfig.__dataclass_fields__:
        remedy = f"{name} is an argument of every training, so put it under {arguments}"
    else:
        known = (*SECTION_PARTS, *SECTION_ARGUMENTS)
        remedy = did_you_mean(str(name), known, f"its keys are {enumeration(known)}")
    return problem({f"{FINE_TUNE}.{name}": value}, RefusalError("the section has no such key", remedy))


def _move_argument(document: Document, name: str, arguments: str) -> None:
    here, there = (FINE_TUNE, name), (arguments, name)
    if document.at(there) is not None:
        sentence = f"{name} is given in {FINE_TUNE} and in {arguments}; remove one of them."
        document.problems.append(document.located([here, there], sentence))
        return
    location = document.locations.get(here) or SourceLocation(FINE_TUNE)
    document.put(there, document.at(here), location)


# Parts


def _read_part(reader: PartReader, path: KeyPath, kind: PartKind) -> RecipePart:
    return reader.part(path, kind)


def _read_model(reader: PartReader, path: KeyPath, kind: PartKind) -> RecipePart:
    """Read a model: a text is its name or folder, and not an import path."""
    value = reader.document.at(path)
    return (lambda: value) if isinstance(value, str) else reader.part(path, kind)


def _read_adapters(reader: PartReader, path: KeyPath, kind: PartKind) -> RecipePart:
    """Read a configuration of peft: a part, or the keywords of one, by default LoRA for causal language models."""
    value = reader.document.at(path)
    if not isinstance(value, Mapping) or CALL in value:
        return reader.part(path, kind)
    if find_spec("peft") is None:
        return reader.refuse(path, value, RefusalError("adapters need the package peft", how_to_install("peft")))
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    kinds = {str(getattr(name, "value", name)): found for name, found in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    chosen = value.get("peft_type", "LORA")
    if str(chosen).upper() not in kinds:
        remedy = did_you_mean(str(chosen), kinds, f"choose among {', '.join(kinds)}")
        return reader.refuse((*path, "peft_type"), chosen, RefusalError("peft has no such adapters", remedy))
    return _called(reader, path, kinds[str(chosen).upper()], {"task_type": "CAUSAL_LM"}, ("peft_type",))


def _read_quantization(reader: PartReader, path: KeyPath, kind: PartKind) -> RecipePart:
    """Read how weights are quantized: a part, or keywords of the configuration of a method, such as bitsandbytes'."""
    value = reader.document.at(path)
    if not isinstance(value, Mapping) or CALL in value:
        return reader.part(path, kind)
    if find_spec("transformers") is None:
        return reader.refuse(
            path,
            value,
            RefusalError("it needs the package transformers", how_to_install("transformers", "transformers")),
        )
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = value.get("quant_method")
    if method is None and any(value.get(name) for name in KNOWN_BITS):
        method = f"bitsandbytes_{4 if value.get(KNOWN_BITS[0]) else 8}bit"
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        known = AUTO_QUANTIZATION_CONFIG_MAPPING
        remedy = did_you_mean(
            str(method), known, f"set load_in_4bit or load_in_8bit, or quant_method to one of {', '.join(known)}"
        )
        return reader.refuse(path, method or dict(value), RefusalError("that names no method of quantization", remedy))
    return _called(reader, path, AUTO_QUANTIZATION_CONFIG_MAPPING[method], {}, ("quant_method",))


def _called(
    reader: PartReader,
    path: KeyPath,
    function: Callable[..., Any],
    defaults: Mapping[str, Any],
    left_out: tuple[str, ...],
) -> RecipePart:
    """Read the keywords at `path` for a call of `function`, whose parameters are all named."""
    names = [each.name for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    keywords = reader.arguments(path, left_out)
    for name in keywords:
        if name not in names:
            because = f"{function.__name__} has no parameter {name}"
            refusal = RefusalError(because, did_you_mean(name, names, f"its parameters are {enumeration(names)}"))
            reader.refuse((*path, name), reader.document.at((*path, name)), refusal)
    return partial(_call, function, {**{name: partial(_value, each) for name, each in defaults.items()}, **keywords})


def _value(value: Any) -> Any:
    return value


def _call(function: Callable[..., Any], keywords: Mapping[str, RecipePart]) -> Any:
    return function(**{name: make() for name, make in keywords.items()})


_READ: Mapping[str, Callable[[PartReader, KeyPath, PartKind], RecipePart]] = {
    MODEL: _read_model,
    "peft_config": _read_adapters,
    "quantization_config": _read_quantization,
}
