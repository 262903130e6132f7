"""The configurations of adapters: as PEFT writes them, and read from a checkpoint that anyone may have written."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from hexloop.adapters.trainable.torch.peft_tensors import inner_model
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json

_NAME = re.compile(r"\w[\w -]*")
"""The names of adapters that are taken from a checkpoint: they become names of modules and of folders."""

_PLAIN = re.compile(r"[\w.-]+")
"""The names of modules, or ends of them, that contain no pattern."""

_LINEAR = re.compile(r"[\w.^$\\-]*")
"""Patterns without repetition and alternatives, whose match takes time proportional to the name's length."""

RUN_AS_PATTERNS = (
    *("target_modules", "modules_to_save", "exclude_modules", "feedforward_modules", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "n_frequency_pattern", "block_size_pattern"),
)
"""The entries whose texts PEFT runs as regular expressions over the names of modules."""

TEXTS = frozenset({"peft_type", "task_type", "bias", "base_model_name_or_path", "revision", "peft_version"})
"""The entries that may be texts."""

LISTS = frozenset(
    {"target_modules", "modules_to_save", "feedforward_modules", "exclude_modules", "layers_to_transform"}
)
"""The entries that may be lists."""

PATTERNS = frozenset({"rank_pattern", "alpha_pattern"})
"""The entries that may be mappings from names of modules to numbers."""

LEFT_OUT = frozenset({"auto_mapping", "megatron_core", "init_lora_weights", "init_weights", "inference_mode"})
"""Entries that do not matter to an adapter whose weights are loaded, some of which name modules of Python to import."""


def configuration(model: Any, adapter: str) -> dict[str, Any]:
    """Return the content of an adapter's `adapter_config.json`, as PEFT writes it."""
    from peft.utils import CONFIG_NAME

    config = model.peft_config[adapter]
    base = inner_model(model)
    name = config.base_model_name_or_path or getattr(base, "name_or_path", None) or None
    mapping = None
    if config.task_type is None:
        mapping = {"base_model_class": type(base).__name__, "parent_library": type(base).__module__}
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder, **({} if mapping is None else {"auto_mapping_dict": mapping}))
        with open(os.path.join(folder, CONFIG_NAME), "rb") as file:
            found: dict[str, Any] = read_json(file.read())
    found |= {"base_model_name_or_path": name, "inference_mode": True}
    if ranks := found.get("rank_pattern"):
        found["rank_pattern"] = {key.replace(f".{adapter}", ""): value for key, value in ranks.items()}
    return found


def check_name(adapter: object) -> str:
    """Return the name of an adapter. Raises CheckpointError for one that could be a path."""
    if not isinstance(adapter, str) or not _NAME.fullmatch(adapter) or len(adapter) > 100:
        raise CheckpointError(
            f"The checkpoint has an adapter of the name {str(adapter)[:80]!r}, which is not read from a file: names "
            "consist of letters, digits, spaces, - and _."
        )
    return adapter


def add_frozen(model: Any, adapter: str, values: Any) -> None:
    """Add an adapter, which is not trained, from the content of its configuration file.

    The adapters that are active, and what of them is trained, stay as they are, and so do the random generators.
    Raises ValueError for a configuration that PEFT does not accept, that is of another kind than the adapters of the
    model, or that has entries which make PEFT run a pattern or load something.
    """
    from peft import PeftConfig
    from peft.utils import CONFIG_NAME

    known = harmless(model, adapter, values)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, CONFIG_NAME), "w", encoding="utf-8") as file:
            json.dump(known, file)
        try:
            config = PeftConfig.from_pretrained(folder)
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"the configuration of the adapter {adapter!r} is invalid: {error}") from error
    before = {name: each.requires_grad for name, each in model.named_parameters()}
    with torch.random.fork_rng():  # its first weights are drawn, and replaced
        if getattr(model, "_hf_peft_config_loaded", False):  # the newest adapter becomes the active one
            active = model.active_adapters()
            model.add_adapter(config, adapter)
            model.set_adapter(active)
        else:
            model.add_adapter(adapter, config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(before.get(name, False))


def harmless(model: Any, adapter: str, values: Any) -> dict[str, Any]:
    """Return the entries of a configuration that describe an adapter and do nothing else.

    Raises ValueError for one that is of another kind than the adapters of the model, or has other entries.
    """
    kinds = {_kind(each) for each in model.peft_config.values()}
    if not isinstance(values, Mapping) or values.get("peft_type") not in kinds:
        kind = values.get("peft_type") if isinstance(values, Mapping) else None
        raise ValueError(
            f"the adapter {adapter!r} of the checkpoint is of the kind {str(kind)[:40]}, and the model has "
            f"{', '.join(sorted(kinds))}; add it to the model before you resume"
        )
    given = {name: value for name, value in values.items() if name not in LEFT_OUT and value not in (None, {}, [])}
    for name, value in given.items():
        if not _is_harmless(name, value):
            raise ValueError(
                f"the adapter {adapter!r} of the checkpoint, which the model does not have, has {name}="
                f"{str(value)[:80]!r}, and patterns and names of a file are not used; add the adapter to the model "
                "before you resume"
            )
    return {**given, "inference_mode": True, **_without_initialization(values)}


def _without_initialization(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry that keeps a kind from changing the base by what it begins with, where there is one."""
    return {name: False for name in ("init_lora_weights",) if isinstance(values.get(name), str)}


def _is_harmless(name: str, value: Any) -> bool:
    if value == "all-linear" and name == "target_modules":
        return True
    if isinstance(value, str):
        return name in TEXTS
    if isinstance(value, list):
        return name in LISTS and all(isinstance(each, int) or _is_plain(each) for each in value)
    if isinstance(value, Mapping):
        return name in PATTERNS and all(_is_plain(key) and isinstance(each, int | float) for key, each in value.items())
    return True


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None


def _kind(config: Any) -> str:
    return str(getattr(config.peft_type, "value", config.peft_type))


def loads_more(values: Any) -> str | None:
    """Return the entry of a configuration by which PEFT would import a module or load other files; else None."""
    if not isinstance(values, Mapping):
        return "peft_type"
    if values.get("peft_type") == "XLORA":
        return "peft_type"
    return "megatron_config" if values.get("megatron_config") else None


def without_patterns(values: Mapping[str, Any], modules: Collection[str], tensors: Iterable[str]) -> dict[str, Any]:
    """Return the content of a configuration file with the modules by name, where it had a pattern that finds them.

    A regular expression of a file could run without an end. The names of an adapter's tensors name its modules, too.
    modules: the names of the base's modules. tensors: the names in the adapter's file.
    Raises ValueError if another entry has a pattern with repetition or alternatives.
    """
    given = dict(values)
    target = given.get("target_modules")
    if isinstance(target, str) and target != "all-linear":
        own = {_module_of(name.removeprefix("base_model.model."), modules) for name in tensors}
        given["target_modules"] = sorted(own - {""})
        for name in ("exclude_modules", "layers_to_transform", "layers_pattern"):
            given.pop(name, None)
    for name in RUN_AS_PATTERNS:
        entry = given.get(name)
        texts = [entry] if isinstance(entry, str) else list(entry or ()) if isinstance(entry, list | dict) else []
        if any(isinstance(each, str) and not _LINEAR.fullmatch(each) for each in texts):
            raise ValueError(f"the configuration has {name}={str(entry)[:80]!r}, and patterns of a file are not run")
    return given


def _module_of(tensor: str, modules: Collection[str]) -> str:
    """Return the innermost module that contains a tensor of this name; "" for the model."""
    parts = tensor.split(".")
    return next((name for count in range(len(parts) - 1, 0, -1) if (name := ".".join(parts[:count])) in modules), "")
