"""The names of `hexloop.transformers` and its modules, which are looked up when they are first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import hexloop
from hexloop.app.takeover.names import EQUIVALENTS, FAMILY, FORMER, OWN_NAMES, PACKAGE, STAND_INS, module_name
from hexloop.domain.installation import how_to_install

HERE = "hexloop.transformers"


def attribute(module: str, name: str) -> Any:
    """Return hexloop's object of that name, or transformers'; keep it in the module."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    relative = _relative(module)
    if name in _own_names(relative):
        value = getattr(hexloop, name)
    else:
        value = _handed_on(module, relative, name)
        if name in OWN_NAMES:  # the module imports it
            value = getattr(hexloop, name)
    vars(sys.modules[module])[name] = value
    return value


def names(module: str) -> list[str]:
    """Return the public names of a module."""
    relative = _relative(module)
    try:
        original = import_module(module_name(relative))
    except ModuleNotFoundError:
        return sorted(_own_names(relative))
    listed = getattr(original, "__all__", None) or (name for name in dir(original) if not name.startswith("_"))
    return sorted({*_own_names(relative), *listed})


def _relative(module: str) -> str:
    return module.removeprefix(HERE).lstrip(".")


def _handed_on(module: str, relative: str, name: str) -> Any:
    """Return transformers' object of that name, or the stand-in of a submodule."""
    if f"{relative}.{name}".lstrip(".") in STAND_INS:
        return import_module(f"{module}.{name}")
    try:
        import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise ModuleNotFoundError(
            f"{module}.{name} is transformers' own, and transformers is not installed; "
            f"{how_to_install('transformers', 'transformers')}.",
            name=PACKAGE,
        ) from None
    if name == "__all__":
        return names(module)
    try:
        return getattr(import_module(module_name(relative)), name)
    except AttributeError:
        release = import_module(PACKAGE).__version__
        raise AttributeError(f"{module_name(relative)} of transformers {release} has no {name!r}") from None


def _own_names(relative: str) -> frozenset[str]:
    """Return the names that a module has without transformers, all of them hexloop's.

    `integrations` has those of the module within it, as in transformers.
    """
    if not relative:
        return OWN_NAMES
    modules = (relative, "integrations.integration_utils") if relative == "integrations" else (relative,)
    tables = (FAMILY, EQUIVALENTS, FORMER)
    return frozenset(name for table in tables for module in modules for name in table.get(module, ()))
