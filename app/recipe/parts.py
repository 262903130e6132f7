"""The parts of a recipe: import paths and calls, read from the YAML document, and made when the Trainer is created."""

from __future__ import annotations

import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter
from types import ModuleType
from typing import Any, TypeAlias

from attrs import define, field

from hexloop.app.arguments.documents import Document, KeyPath
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, problem

CALL = "call"
"""The key whose value is called, with the other keys of the mapping as keyword arguments."""

OBJECT = "object"
"""The only key of a mapping among a call's arguments that stands for the object at an import path."""

RecipePart: TypeAlias = Callable[[], Any]
"""Makes something that a recipe describes; raises whatever the recipe's code raises."""


class PartKind(Enum):
    """What a part that is given as an import path must be."""

    OBJECT = "an object, such as an instance"
    FUNCTION = "a function"
    CALLABLE = "a callable"
    CLASS = "a class"
    EITHER = "a class or an instance of one"


@define
class PartReader:
    """Reads parts from `document` and adds their problems to the document's.

    causes: the errors that modules raised when they were imported.
    """

    document: Document
    causes: list[BaseException] = field(factory=list, init=False)

    def part(self, path: KeyPath, kind: PartKind) -> RecipePart:
        """Read the part at `path`: an import path, or a mapping that describes a call."""
        value = self.document.at(path)
        if isinstance(value, str):
            found = self._object(path, value, kind)
            return lambda: found
        if isinstance(value, Mapping) and CALL in value:
            return self._call(path, value, kind)
        return self.refuse(
            path, value, RefusalError("it takes an import path", f"give one, or a mapping whose key {CALL} has one")
        )

    def parts(self, path: KeyPath, kind: PartKind) -> RecipePart:
        """Read the list of parts at `path`."""
        value = self.document.at(path)
        if not isinstance(value, list):
            return self.refuse(path, value, RefusalError("it takes a list", "put a dash before each item"))
        return _listed([self.part((*path, index), kind) for index in range(len(value))])

    def part_or_parts_by_name(self, path: KeyPath, kind: PartKind) -> RecipePart:
        """Read the part at `path`, or the named parts of a mapping without the key `call`."""
        value = self.document.at(path)
        if isinstance(value, Mapping) and value and CALL not in value:
            return _named({str(name): self.part((*path, name), kind) for name in value})
        return self.part(path, kind)

    def _call(self, path: KeyPath, value: Mapping[Any, Any], kind: PartKind = PartKind.OBJECT) -> RecipePart:
        target = value[CALL]
        if not isinstance(target, str):
            return self.refuse((*path, CALL), target, RefusalError("it takes an import path", "give one"))
        keywords = self.arguments(path, (CALL,))
        function = self._resolved((*path, CALL), target)
        if function is None:
            return lambda: None
        for keyword, refusal in call_problems(function, target.rpartition(".")[2], keywords):
            only_named = keyword is None and kind is PartKind.FUNCTION and not keywords
            remedy = f"to pass it without calling it, write '{path[0]}: {target}'" if only_named else refusal.remedy
            key = keyword or CALL
            self.refuse((*path, key), value[key], RefusalError(refusal.because, remedy))
        return lambda: function(**_named(keywords)())

    def arguments(self, path: KeyPath, left_out: Collection[str]) -> dict[str, RecipePart]:
        """Read the keywords of a call: the mapping at `path` without the keys `left_out`."""
        value = self.document.at(path)
        return {str(name): self._argument((*path, name)) for name in value if name not in left_out}

    def _argument(self, path: KeyPath) -> RecipePart:
        """Read an argument of a call: a plain value, or one that contains calls and objects at any depth."""
        value = self.document.at(path)
        if isinstance(value, Mapping) and CALL in value:
            return self._call(path, value)
        if isinstance(value, Mapping) and list(value) == [OBJECT] and isinstance(value[OBJECT], str):
            found = self._resolved((*path, OBJECT), value[OBJECT])
            return lambda: found
        if isinstance(value, Mapping):
            return _named({name: self._argument((*path, name)) for name in value})
        if isinstance(value, list):
            return _listed([self._argument((*path, index)) for index in range(len(value))])
        return lambda: value

    def _object(self, path: KeyPath, text: str, kind: PartKind) -> Any:
        found = self._resolved(path, text)
        is_class = inspect.isclass(found)
        fits = {
            PartKind.OBJECT: not is_class and not inspect.isroutine(found),
            PartKind.FUNCTION: callable(found) and not is_class,
            PartKind.CALLABLE: callable(found),
            PartKind.CLASS: is_class,
            PartKind.EITHER: is_class or not inspect.isroutine(found),
        }[kind]
        if found is not None and not fits:
            remedy = f"to call it, write '{{call: {text}}}'" if callable(found) else "name another"
            found_kind = "a class" if is_class else f"a {type(found).__name__}"
            self.refuse(path, text, RefusalError(f"that is {found_kind}, and {kind.value} is needed", remedy))
        return found

    def _resolved(self, path: KeyPath, text: str) -> Any:
        """Return the object at the import path `text`; None, with a problem added, if there is none."""
        try:
            found = resolve(text)
        except RefusalError as refusal:
            if refusal.__cause__ is not None:
                self.causes.append(refusal.__cause__)
            self.refuse(path, text, refusal)
            return None
        if found is None:
            self.refuse(path, text, RefusalError("that is None", "name something else"))
        return found

    def refuse(self, path: KeyPath, value: object, refusal: RefusalError) -> RecipePart:
        """Add a problem with `value` and return a placeholder, so that reading continues."""
        sentence = problem({".".join(map(str, path)): value}, refusal)
        self.document.problems.append(self.document.located([path], sentence))
        return lambda: None


def _listed(parts: list[RecipePart]) -> RecipePart:
    return lambda: [make() for make in parts]


def _named(parts: Mapping[Any, RecipePart]) -> RecipePart:
    return lambda: {name: make() for name, make in parts.items()}


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
            f"there is no module {first}",
            did_you_mean(first, _top_level_modules(), "install it, or set PYTHONPATH", similarity=0.8),
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
    required = [each for each in parameters.values() if each.default is Parameter.empty]
    absent = [each.name for each in required if each.kind in BY_NAME and each.name not in given]
    by_position = [each.name for each in required if each.kind is Parameter.POSITIONAL_ONLY]
    if absent:
        yield None, RefusalError(f"{name} also needs {enumeration(absent)}", "add what is missing as keys next to call")
    if by_position:
        because = f"{name} takes {enumeration(by_position)} by position only, and a recipe passes arguments by name"
        yield None, RefusalError(because, "write a function that calls it")


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
