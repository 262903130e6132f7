"""The parts of a recipe: values and calls, read from the YAML document and made when the Trainer is created."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from attrs import define, field, frozen

from hexloop.app.arguments.documents import Document, KeyPath
from hexloop.app.recipe.resolving import call_problems, resolve
from hexloop.domain.wording import RefusalError, problem

CALL = "call"
"""The key whose value is called, with the other keys of the mapping as keyword arguments."""

OBJECT = "object"
"""The only key of a mapping among a call's arguments that stands for the object at an import path."""


class RecipePart(Protocol):
    """Something that a recipe describes."""

    def make(self) -> Any:
        """Return the object itself; raises whatever the recipe's code raises."""
        ...


@frozen
class Value:
    """An existing object."""

    value: Any

    def make(self) -> Any:
        """Return the object."""
        return self.value


@frozen
class Call:
    """The result of calling `function`, after making its keyword arguments."""

    function: Callable[..., Any]
    keywords: Mapping[str, RecipePart]

    def make(self) -> Any:
        """Call the function and return its result."""
        return self.function(**{name: part.make() for name, part in self.keywords.items()})


@frozen
class Several:
    """A list of parts."""

    items: Sequence[RecipePart]

    def make(self) -> Any:
        """Return the list of the objects made."""
        return [part.make() for part in self.items]


@frozen
class Named:
    """A mapping of names to parts."""

    items: Mapping[str, RecipePart]

    def make(self) -> Any:
        """Return the mapping of names to the objects made."""
        return {name: part.make() for name, part in self.items.items()}


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
            return Value(self._object(path, value, kind))
        if isinstance(value, Mapping) and CALL in value:
            return self._call(path, value, kind)
        return self._refuse(
            path, value, RefusalError("it takes an import path", f"give one, or a mapping whose key {CALL} has one")
        )

    def parts(self, path: KeyPath, kind: PartKind) -> RecipePart:
        """Read the list of parts at `path`."""
        value = self.document.at(path)
        if not isinstance(value, list):
            return self._refuse(path, value, RefusalError("it takes a list", "put a dash before each item"))
        return Several([self.part((*path, index), kind) for index in range(len(value))])

    def part_or_parts_by_name(self, path: KeyPath, kind: PartKind) -> RecipePart:
        """Read the part at `path`, or the named parts of a mapping without the key `call`."""
        value = self.document.at(path)
        if isinstance(value, Mapping) and value and CALL not in value:
            return Named({str(name): self.part((*path, name), kind) for name in value})
        return self.part(path, kind)

    def _call(self, path: KeyPath, value: Mapping[Any, Any], kind: PartKind = PartKind.OBJECT) -> RecipePart:
        target = value[CALL]
        if not isinstance(target, str):
            return self._refuse((*path, CALL), target, RefusalError("it takes an import path", "give one"))
        keywords = {str(name): self._argument((*path, name)) for name in value if name != CALL}
        function = self._resolved((*path, CALL), target)
        if function is None:
            return Value(None)
        for keyword, refusal in call_problems(function, target.rpartition(".")[2], keywords):
            only_named = keyword is None and kind is PartKind.FUNCTION and not keywords
            remedy = f"to pass it without calling it, write '{path[0]}: {target}'" if only_named else refusal.remedy
            key = keyword or CALL
            self._refuse((*path, key), value[key], RefusalError(refusal.because, remedy))
        return Call(function, keywords)

    def _argument(self, path: KeyPath) -> RecipePart:
        """Read an argument of a call: a plain value, or one that contains calls and objects at any depth."""
        value = self.document.at(path)
        if isinstance(value, Mapping) and CALL in value:
            return self._call(path, value)
        if isinstance(value, Mapping) and list(value) == [OBJECT] and isinstance(value[OBJECT], str):
            return Value(self._resolved((*path, OBJECT), value[OBJECT]))
        if isinstance(value, Mapping):
            return Named({name: self._argument((*path, name)) for name in value})
        if isinstance(value, list):
            return Several([self._argument((*path, index)) for index in range(len(value))])
        return Value(value)

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
            self._refuse(path, text, RefusalError(f"that is {found_kind}, and {kind.value} is needed", remedy))
        return found

    def _resolved(self, path: KeyPath, text: str) -> Any:
        """Return the object at the import path `text`; None, with a problem added, if there is none."""
        try:
            found = resolve(text)
        except RefusalError as refusal:
            if refusal.__cause__ is not None:
                self.causes.append(refusal.__cause__)
            self._refuse(path, text, refusal)
            return None
        if found is None:
            self._refuse(path, text, RefusalError("that is None", "name something else"))
        return found

    def _refuse(self, path: KeyPath, value: object, refusal: RefusalError) -> RecipePart:
        """Add a problem with `value` and return a placeholder, so that reading continues."""
        sentence = problem({".".join(map(str, path)): value}, refusal)
        self.document.problems.append(self.document.located([path], sentence))
        return Value(None)
