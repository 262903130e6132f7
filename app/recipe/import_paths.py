"""Import paths such as `package.module.Name`, and what exactly is wrong with one that leads nowhere."""

from __future__ import annotations

import pkgutil
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from hexloop.domain.wording import RefusalError, did_you_mean


def resolve(path: str) -> Any:
    """The object that `path` leads to; the modules on the way are imported.

    Raises RefusalError where there is no such module, where a module raises while it is imported (which is the error's
    cause), where an attribute is missing, and where the path ends at a module.
    """
    first, *others = path.split(".")
    if not all(name.isidentifier() for name in (first, *others)):
        raise RefusalError("that is no import path", "write names with dots between them, as in my_module.MyModel")
    if not _exists(first):
        raise RefusalError(
            f"there is no module {first}", did_you_mean(first, _top_level_modules(), "install it, or set PYTHONPATH")
        )
    found = _imported(first)
    for depth, name in enumerate(others, 1):
        found = _member(found, ".".join([first, *others[: depth - 1]]), name)
    if isinstance(found, ModuleType):
        raise RefusalError("that is a module", f"name something in it, as in {path}.MyModel")
    return found


def _member(owner: Any, owner_path: str, name: str) -> Any:
    """The attribute or submodule `name` of `owner`."""
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    except Exception as error:  # a module that imports its attributes when they are asked for
        raise _refusal_of(f"{owner_path}.{name}", error) from error
    submodules = _submodules(owner)
    if name in submodules:
        return _imported(f"{owner.__name__}.{name}")
    public = [each for each in dir(owner) if not each.startswith("_")]
    kind = "module" if isinstance(owner, ModuleType) else type(owner).__name__
    raise RefusalError(
        f"the {kind} {owner_path} has no {name}", did_you_mean(name, [*public, *submodules], "check the name")
    )


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise _refusal_of(module, error) from error


def _refusal_of(what: str, error: BaseException) -> RefusalError:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return RefusalError(
            f"importing {what} needs the module {error.name}, which is not there{_place(error)}",
            f"install {error.name}",
        )
    return RefusalError(f"importing {what} raised {type(error).__name__}: {error}{_place(error)}", "mend that")


def _place(error: BaseException) -> str:
    """The file and line that raised `error`, where it is not a line of the import machinery."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if isinstance(error, SyntaxError) or frames[-1].filename == __file__:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"


def _exists(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except ValueError:  # a module that somebody put into sys.modules without saying where it is from
        return True


def _submodules(owner: Any) -> list[str]:
    folders = getattr(owner, "__path__", ()) if isinstance(owner, ModuleType) else ()
    return [found.name for found in pkgutil.iter_modules(folders)]


def _top_level_modules() -> set[str]:
    return {found.name for found in pkgutil.iter_modules()} | set(sys.stdlib_module_names)
