"""Stands for the package transformers: `hexloop.transformers.<name>` has the names of `transformers.<name>`.

Classes of the Trainer family, and what else hexloop defines under the same name, are hexloop's, also if transformers is
not installed. Everything else is handed on from the installed transformers when it is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import hexloop
from hexloop.app.takeover.names import EQUIVALENTS, FAMILY, FORMER, OWN_NAMES, PACKAGE, STAND_INS, module_name
from hexloop.domain.installation import how_to_install

_PACKAGES = frozenset(name.rpartition(".")[0] for name in STAND_INS)


class _StandIns:
    """Finds and fills the modules of STAND_INS."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that stands for one of transformers."""
        package, _, relative = fullname.partition(f"{__name__}.")
        if package or relative not in STAND_INS:
            return None
        return ModuleSpec(fullname, self, is_package=relative in _PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default."""

    def exec_module(self, module: ModuleType) -> None:
        """Look every attribute up when it is first used."""
        relative = module.__name__[len(__name__) + 1 :]
        module.__doc__ = f"Stands for {module_name(relative)}: hexloop's own names, and transformers' for the rest."
        vars(module).update(__getattr__=partial(_attribute, module, relative), __dir__=partial(_names, relative))


def _attribute(module: ModuleType, relative: str, name: str) -> Any:
    """Return hexloop's object of that name, or transformers'; keep it in the module."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    if name in _own_names(relative):
        value = getattr(hexloop, name)
    else:
        value = _handed_on(module, relative, name)
        if name in OWN_NAMES:  # the module imports it
            value = getattr(hexloop, name)
    vars(module)[name] = value
    return value


def _handed_on(module: ModuleType, relative: str, name: str) -> Any:
    """Return transformers' object of that name, or the stand-in of a submodule."""
    if (submodule := f"{relative}.{name}".lstrip(".")) in STAND_INS:
        return import_module(f"{__name__}.{submodule}")
    try:
        import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise ModuleNotFoundError(
            f"{module.__name__}.{name} is transformers' own, and transformers is not installed; "
            f"{how_to_install('transformers', 'transformers')}.",
            name=PACKAGE,
        ) from None
    if name == "__all__":
        return _names(relative)
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


def _names(relative: str) -> list[str]:
    """Return the public names of a module."""
    try:
        original = import_module(module_name(relative))
    except ModuleNotFoundError:
        return sorted(_own_names(relative))
    listed = getattr(original, "__all__", None) or (name for name in dir(original) if not name.startswith("_"))
    return sorted({*_own_names(relative), *listed})


def __getattr__(name: str) -> Any:
    return _attribute(sys.modules[__name__], "", name)


def __dir__() -> list[str]:
    return _names("")


sys.meta_path.append(_StandIns())
__path__: list[str] = []  # makes this module a package, whose modules the finder makes
