"""Import paths such as `package.module.Name`, and checks of whether an object can be called with given keywords."""

from __future__ import annotations

import inspect
import pkgutil
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter
from types import ModuleType
from typing import Any

from hexloop.domain.wording import RefusalError, did_you_mean, enumeration

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def resolve(path: str) -> Any:
    """Return the object at an import path, importing the modules on the way.

    Raises RefusalError if a module does not exist, a module raises while it is imported (the cause of the error), an
    attribute is missing, or the path leads to a module.
    """
    first, *others = path.split(".")
    if not all(name.isidentifier() for name in (first, *others)):
        raise RefusalError("that is not an import path", "write names separated by dots, as in my_module.MyModel")
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


def call_problems(function: Any, name: str, given: Collection[str]) -> Iterator[tuple[str | None, RefusalError]]:
    """Find problems with calling `function` with the keywords `given`, without calling it.

    name: how messages refer to the function. Yields each problem with the keyword it concerns, or None for missing
    arguments. Nothing is reported for functions without a signature, such as some written in C, nor for decorated
    functions whose decorator accepts any keywords and may change them.
    """
    if not callable(function):
        yield None, RefusalError(f"{name} cannot be called", "name a class or a function")
        return
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if _is_wrapped(function.__init__ if inspect.isclass(function) else function):
        return
    named = [each.name for each in parameters.values() if each.kind in BY_NAME]
    if not any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        for keyword in given:
            if keyword not in named:
                otherwise = f"its parameters are {enumeration(named)}" if named else "leave it out, as there are none"
                because = f"{name} has no parameter {keyword}"
                yield keyword, RefusalError(because, did_you_mean(keyword, named, otherwise))
    yield from ((None, refusal) for refusal in _missing(parameters, name, given))


def _member(owner: Any, owner_path: str, name: str) -> Any:
    """Return the attribute or submodule `name` of `owner`."""
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    except Exception as error:  # raised by a module that imports its attributes lazily
        raise _import_refusal(f"{owner_path}.{name}", error) from error
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
        raise _import_refusal(module, error) from error


def _import_refusal(what: str, error: BaseException) -> RefusalError:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return RefusalError(
            f"importing {what} needs the module {error.name}, which is not installed{_location(error)}",
            f"install {error.name}",
        )
    return RefusalError(f"importing {what} raised {type(error).__name__}: {error}{_location(error)}", "fix that error")


def _location(error: BaseException) -> str:
    """Return the file and line that raised `error`; empty if it was raised by the import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if isinstance(error, SyntaxError) or frames[-1].filename == __file__:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"


def _exists(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except ValueError:  # a module in sys.modules without a __spec__
        return True


def _submodules(owner: Any) -> list[str]:
    folders = getattr(owner, "__path__", ()) if isinstance(owner, ModuleType) else ()
    return [found.name for found in pkgutil.iter_modules(folders)]


def _top_level_modules() -> set[str]:
    return {found.name for found in pkgutil.iter_modules()} | set(sys.stdlib_module_names)


def _is_wrapped(function: Any) -> bool:
    """Return whether `function` accepts any keywords itself while it shows the signature of a function it wraps."""
    while hasattr(function, "__wrapped__"):
        if inspect.isfunction(function) and function.__code__.co_flags & inspect.CO_VARKEYWORDS:
            return True
        function = function.__wrapped__
    return False


def _missing(parameters: Mapping[str, Parameter], name: str, given: Collection[str]) -> Iterator[RefusalError]:
    required = [each for each in parameters.values() if each.default is Parameter.empty]
    absent = [each.name for each in required if each.kind in BY_NAME and each.name not in given]
    by_position = [each.name for each in required if each.kind is Parameter.POSITIONAL_ONLY]
    if absent:
        yield RefusalError(f"{name} also needs {enumeration(absent)}", "add what is missing as keys next to call")
    if by_position:
        yield RefusalError(
            f"{name} takes {enumeration(by_position)} by position only, and a recipe passes arguments by name",
            "write a function that calls it",
        )
