"""The modules of a model whose weights an engine gathers and frees together."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen
from torch import nn

from hexloop.domain.errors import ConfigurationError

PROMPT_ENCODERS = frozenset({"PrefixEncoder", "PromptEncoder", "PromptEmbedding", "CartridgeEncoder"})
"""The classes of PEFT's modules that compute prompts, which are units of their own, as PEFT recommends.

Layers of adapters are gathered with the layers that they change: FSDP 2 gathers trained and frozen weights together.
"""


@frozen
class Units:
    """Selects the FSDP units: the modules whose weights are gathered and freed together.

    Parameters outside all units are gathered with the root module.

    classes: class names of the modules. None: those in the `_no_split_modules` of the model and its modules.
    least: if positive, modules are selected by size instead: each has at least this many parameters that belong to no
        other unit.
    """

    classes: tuple[str, ...] | None = None
    least: int = 0

    def of(self, model: nn.Module) -> list[nn.Module]:
        """Return the units of `model`, inner before outer. Raises ConfigurationError if a class does not occur."""
        if self.least > 0:
            return [module for module in _by_size(model, self.least) if module is not model]
        names = set(self.classes or ())
        if self.classes is None:
            names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
        names |= PROMPT_ENCODERS if hasattr(model, "prompt_encoder") else set()
        found = [module for module in model.modules() if _class_name(module) in names and module is not model]
        names -= PROMPT_ENCODERS
        if missing := names - {_class_name(module) for module in model.modules()} if self.classes else set():
            raise ConfigurationError(
                f"You chose FSDP with transformer_layer_cls_to_wrap={sorted(missing)}, but {type(model).__name__} "
                f"has no module of that class; choose among {', '.join(_repeated(model)) or 'its classes'}."
            )
        return found[::-1]


def _class_name(module: nn.Module) -> str:
    return type(module).__name__


def _repeated(model: nn.Module) -> list[str]:
    """Return the class names of the modules in module lists."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return sorted({_class_name(child) for each in lists for child in each})


def _by_size(model: nn.Module, least: int) -> Iterator[nn.Module]:
    """Yield modules with at least `least` parameters that no earlier one has, inner before outer."""
    taken: set[int] = set()

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            yield from walk(child)
        left = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if not isinstance(module, nn.ModuleList | nn.ModuleDict) and sum(each.numel() for each in left) >= least:
            taken.update(map(id, left))
            yield module

    yield from walk(model)
