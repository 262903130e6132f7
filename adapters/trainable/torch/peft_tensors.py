"""Which tensors of a model belong to adapters of PEFT, and where PEFT's files have them.

PEFT itself says which tensors its files hold (`get_peft_model_state_dict`). It is asked once, with tensors that have no
memory in place of the model's, so that the answer costs neither time nor memory, and is right for weights that other
processes hold.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.model_state import is_extra, owners
from hexloop.adapters.trainable.torch.names import by_own_names
from hexloop.domain.json_documents import read_json

EMBEDDINGS = ("embed_tokens", "lm_head")
"""How PEFT recognizes the embeddings of a language model among the modules that an adapter changes."""

BASE = ("base_layer", "original_module")
"""The names under which PEFT's layers hold the module of the base that they change or replace."""


@frozen
class AdapterTensors:
    """Which tensors of a model a checkpoint of its adapters holds.

    files: for each tensor in a file of PEFT's, as (adapter, name in the file), its name in the model.
    computed: the tensors in files of PEFT's that are no tensors of the model, but computed from some.
    kept: the names in the model of all tensors that are not the base's as it was loaded: those of adapters, trained or
    frozen, those in PEFT's files, buffers that a forward pass may change, and extra state.
    """

    files: Mapping[tuple[str, str], str]
    computed: frozenset[tuple[str, str]]
    kept: frozenset[str]


def has_peft_adapters(model: Any) -> bool:
    """Return whether a model has adapters that PEFT made; its package is loaded in that case."""
    kind = getattr(sys.modules.get("peft"), "PeftConfig", None)
    configurations = getattr(model, "peft_config", None)
    if not isinstance(kind, type) or not isinstance(configurations, dict) or not configurations:
        return False
    return all(isinstance(each, kind) for each in configurations.values())


def adapter_tensors(model: nn.Module, state: Mapping[str, Any]) -> AdapterTensors:
    """Return which tensors a checkpoint of a model's adapters holds. state: its state dict, under its own names."""
    tensors = {name: each for name, each in state.items() if isinstance(each, Tensor) and not is_extra(name)}
    owner_of = owners(model, tensors)
    files: dict[tuple[str, str], str] = {}
    computed: set[tuple[str, str]] = set()
    for adapter in model.peft_config:  # type: ignore[union-attr]
        stand_ins = {
            name: torch.empty(tuple(each.shape), dtype=each.dtype, device="meta") for name, each in tensors.items()
        }
        names = {id(each): name for name, each in stand_ins.items()}
        for name, value in _state_in_files(model, adapter, stand_ins).items():
            if (own := names.get(id(value))) is None:
                computed.add((adapter, name))
            else:
                files[adapter, name] = owner_of[own]
    changes = _is_adapters(model, _buffers_that_change(model))
    kept = {owner_of[name] for name, each in tensors.items() if each.requires_grad or changes(name)}
    kept |= {name for name in state if is_extra(name)}
    return AdapterTensors(files, frozenset(computed), frozenset(kept | set(files.values())))


def trained_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that are trained now, a tied one under each of its names."""
    trained = {name: each for name, each in model.named_parameters(remove_duplicate=False) if each.requires_grad}
    return list(by_own_names(model, trained))


def computed_tensors(model: nn.Module, computed: frozenset[tuple[str, str]]) -> dict[tuple[str, str], Tensor]:
    """Return the tensors of PEFT's files that are computed from the model's, as (adapter, name in the file).

    These are the prompts that a prompt encoder makes, and what AdaLoRA leaves of its matrices. No random number is
    drawn, and no process exchanges anything.
    """
    found: dict[tuple[str, str], Tensor] = {}
    for adapter in {adapter for adapter, _ in computed} | set(_with_ranks(model)):
        with _evaluating(getattr(model, "prompt_encoder", None)), torch.no_grad():
            values = _state_in_files(model, adapter, model.state_dict(), with_ranks=True)
        resized = adapter in _with_ranks(model)
        found |= {
            (adapter, name): value.detach() for name, value in values.items() if resized or (adapter, name) in computed
        }
    return found


def set_from_files(model: nn.Module, adapter: str, tensors: Mapping[str, Tensor]) -> None:
    """Load an adapter from the tensors of PEFT's file. Raises ValueError if they do not fit."""
    from peft import set_peft_model_state_dict

    prompts = model.peft_config[adapter].is_prompt_learning  # type: ignore[union-attr, index]
    try:
        result = set_peft_model_state_dict(model, dict(tensors), adapter)
    except (RuntimeError, KeyError) as error:
        advice = ""
        if prompts:
            advice = (
                " The file has the prompts alone, without what computes them: it was written with another "
                "num_virtual_tokens, or by a kind of prompt learning with an encoder, from whose result no training "
                "can resume."
            )
        raise ValueError(f"the adapter {adapter!r} does not fit the model: {error}.{advice}") from error
    if (unexpected := getattr(result, "unexpected_keys", None)) and not prompts:
        raise ValueError(f"the adapter {adapter!r} has tensors that the model lacks: {', '.join(unexpected[:8])}")


def inner_model(model: Any) -> Any:
    """Return the base inside PEFT's model, with the layers of the adapters in it; a plain model as it is."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    tuner: Any = getattr(model, "base_model", None)  # of a mixed model
    return tuner.model if hasattr(model, "peft_config") and hasattr(tuner, "model") and _is_tuner(tuner) else model


def base_names(model: nn.Module, names: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each name of a tensor of the base in the model, its name in the base without adapters."""
    base = inner_model(model)
    prefix = next((f"{path}." for path, module in named_modules(model) if module is base and path), "")
    return {name: ".".join(each for each in name.removeprefix(prefix).split(".") if each not in BASE) for name in names}


# AdaLoRA, which changes the ranks of its matrices while it trains


def allocators(model: Any) -> dict[str, Any]:
    """Return, by adapter, what decides on the ranks of AdaLoRA's matrices."""
    tuner: Any = getattr(model, "base_model", None)
    found = getattr(tuner, "rankallocator", None)
    return {} if found is None else {tuner.trainable_adapter_name: found}


IMPORTANCES = ("ipt", "exp_avg_ipt", "exp_avg_unc")
"""The attributes of such an allocator that change in training: tensors by the names of parameters."""


@define(eq=False)
class RankUpdates:
    """Lets AdaLoRA measure its matrices, and change their ranks, after each optimizer step.

    If the program calls `update_and_allocate` itself, as one for transformers does, nothing is done.
    model: with the adapters. allocator: what decides on the ranks.
    """

    _model: Any
    _allocator: Any
    _measured: object = field(default=None, init=False)

    @classmethod
    def of(cls, model: Any) -> RankUpdates | None:
        """Return that of a model; None if it has no adapter of AdaLoRA."""
        found = [*allocators(model).values()]
        return cls(model, found[0]) if found else None

    def before_step(self) -> None:
        """Note what was measured so far. Called before the optimizer step."""
        self._measured = self._latest()

    def after_step(self, step: int) -> None:
        """Update the ranks, while the gradients exist. step: the number of optimizer steps before this one."""
        if self._latest() is self._measured:  # each update makes new tensors
            self._model.base_model.update_and_allocate(step)

    def _latest(self) -> object:
        return next(iter(self._allocator.ipt.values()), None)


def _with_ranks(model: Any) -> list[str]:
    """Return the adapters that have decided on ranks."""
    return [name for name, config in model.peft_config.items() if _ranks_change(config) and config.rank_pattern]


def _ranks_change(config: Any) -> bool:
    return str(getattr(config.peft_type, "value", config.peft_type)) == "ADALORA"


# What PEFT's files hold


def _state_in_files(model: Any, adapter: str, state: Mapping[str, Any], with_ranks: bool = False) -> dict[str, Any]:
    """Return what PEFT writes of an adapter: the tensors of a state dict, and those that are computed.

    with_ranks: leave out the rows that AdaLoRA has given up, as PEFT does.
    """
    from peft import get_peft_model_state_dict

    config = model.peft_config[adapter]
    ranks = getattr(config, "rank_pattern", None)
    if _ranks_change(config) and not with_ranks:
        config.rank_pattern = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _evaluating(getattr(model, "prompt_encoder", None)), torch.no_grad():
                found = get_peft_model_state_dict(
                    AsUnwrapped(model), dict(state), adapter, save_embedding_layers=_saves_embeddings(model, config)
                )
    finally:
        if ranks is not None:
            config.rank_pattern = ranks
    if getattr(model, "_hf_peft_config_loaded", False):
        found = {f"base_model.model.{name}": value for name, value in found.items()}
    return dict(found)


def _saves_embeddings(model: Any, config: Any) -> bool:
    """Return whether PEFT saves the embeddings of the base with an adapter, without asking the Hub.

    It does if the adapter changes them, or if they have another size than in the base that it names.
    """
    from peft import PeftType

    if config.peft_type == PeftType.TRAINABLE_TOKENS or getattr(config, "trainable_token_indices", None) is not None:
        targeted = False
    else:
        from peft.tuners.tuners_utils import BaseTunerLayer

        modules = inner_model(model).named_modules()
        changed = {name.rpartition(".")[2] for name, each in modules if isinstance(each, BaseTunerLayer)}
        targeted = bool(getattr(config, "target_modules", None)) and not changed.isdisjoint(EMBEDDINGS)
        targeted = targeted and not config.is_prompt_learning
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    path = config.base_model_name_or_path
    if targeted or not size or not path or not os.path.isfile(os.path.join(path, "config.json")):
        return targeted
    with suppress(OSError, ValueError), open(os.path.join(path, "config.json"), "rb") as file:
        saved = read_json(file.read())
        return isinstance(saved, dict) and saved.get("vocab_size", size) != size
    return False


def _buffers_that_change(model: nn.Module) -> set[str]:
    """Return the buffers that a forward pass may change: all, but of a quantized base only running statistics.

    A quantized base keeps its weights in buffers.
    """
    quantized = bool(getattr(inner_model(model), "is_quantized", False))
    found = dict[str, bool]()
    for path, module in named_modules(model):
        if not quantized or getattr(module, "track_running_stats", False):
            found |= {f"{path}.{leaf}" if path else leaf: True for leaf in module._buffers}
    return set(by_own_names(model, found))


def _is_adapters(model: nn.Module, buffers: set[str]) -> Callable[[str], bool]:
    """Return what says of a tensor's name whether it is not the base's: of an adapter, or one of these `buffers`."""
    modules = by_own_names(model, dict(named_modules(model)))

    def is_adapters(name: str) -> bool:
        if name in buffers:
            return True
        path, _, below = name.rpartition(".")
        while path:
            module = modules.get(path)
            if module is not None and _is_layer(module):
                return below.partition(".")[0] not in BASE
            if module is not None and _is_tuner(module):
                return below.partition(".")[0] != "model"
            path, _, last = path.rpartition(".")
            below = f"{last}.{below}"
        return below.startswith("prompt_encoder.")

    return is_adapters


FSDP_1 = "_fsdp_wrapped_module"
"""The name under which the wrapper of FSDP 1 holds the module that it wraps."""


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules with their names without the wrappers of FSDP 1, a wrapped one after its wrapper."""
    for path, module in model.named_modules(remove_duplicate=False):
        yield (".".join(each for each in path.split(".") if each != FSDP_1) if FSDP_1 in path else path), module


class AsUnwrapped:
    """A model for PEFT, which looks for modules by their names, without the wrappers of FSDP 1 in these."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        """Return what the model has of that name."""
        return getattr(self._model, name)

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules that are no wrappers, each once."""
        found = {id(module): (path, module) for path, module in named_modules(self._model)}
        inner = dict(found.values())
        return iter(inner.items())


def _is_layer(module: object) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)


def _is_tuner(module: object) -> bool:
    from peft.tuners.tuners_utils import BaseTuner

    return isinstance(module, BaseTuner)


@contextmanager
def _evaluating(module: nn.Module | None) -> Iterator[None]:
    """Let a module compute as in evaluation in the block, so that dropout neither changes its result nor draws."""
    training = [] if module is None else [each for each in module.modules() if each.training]
    for each in training:
        each.training = False
    try:
        yield
    finally:
        for each in training:
            each.training = True
