"""From the values of a document to the parts that they describe."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

from attrs import define, field

from hexloop.app.arguments import Document
from hexloop.app.arguments.documents import KeyPath
from hexloop.app.recipe.import_paths import resolve
from hexloop.app.recipe.parts import Call, Named, Part, Several, Value
from hexloop.app.recipe.signatures import misfits
from hexloop.domain.wording import RefusalError, problem

CALL = "call"
"""The key whose value is called; the keys beside it are what it is called with."""

OBJECT = "object"
"""The only key of a mapping, among what something is called with, that stands for the object at an import path."""


class Sort(Enum):
    """What the plain import path of a part has to lead to."""

    OBJECT = "an object, such as an instance"
    FUNCTION = "a function"
    CALLABLE = "something to call"
    CLASS = "a class"
    EITHER = "a class, or an instance of one"


@define
class PartReader:
    """Reads parts out of `document`; what is wrong with them is put into its problems.

    causes: the errors that modules raised when they were imported.
    """

    document: Document
    causes: list[BaseException] = field(factory=list, init=False)

    def part(self, path: KeyPath, sort: Sort) -> Part:
        """The part at `path`: an import path, or a mapping that says what to call."""
        value = self.document.at(path)
        if isinstance(value, str):
            return Value(self._object(path, value, sort))
        if isinstance(value, Mapping) and CALL in value:
            return self._call(path, value, sort)
        return self._refused(
            path, value, RefusalError("it takes an import path", f"give one, or a mapping whose key {CALL} has one")
        )

    def parts(self, path: KeyPath, sort: Sort) -> Part:
        """The list of parts at `path`."""
        value = self.document.at(path)
        if not isinstance(value, list):
            return self._refused(path, value, RefusalError("it takes a list", "put a dash before each item"))
        return Several([self.part((*path, index), sort) for index in range(len(value))])

    def part_or_parts_by_name(self, path: KeyPath, sort: Sort) -> Part:
        """The part at `path`, or the parts that a mapping without `call` has under its keys."""
        value = self.document.at(path)
        if isinstance(value, Mapping) and value and CALL not in value:
            return Named({str(name): self.part((*path, name), sort) for name in value})
        return self.part(path, sort)

    def _call(self, path: KeyPath, value: Mapping[Any, Any], sort: Sort = Sort.OBJECT) -> Part:
        target = value[CALL]
        if not isinstance(target, str):
            return self._refused((*path, CALL), target, RefusalError("it takes an import path", "give one"))
        keywords = {str(name): self._argument((*path, name)) for name in value if name != CALL}
        function = self._resolved((*path, CALL), target)
        if function is None:
            return Value(None)
        for keyword, refusal in misfits(function, target.rpartition(".")[2], keywords):
            only_named = keyword is None and sort is Sort.FUNCTION and not keywords
            remedy = f"to name it and not call it, write '{path[0]}: {target}'" if only_named else refusal.remedy
            key = keyword or CALL
            self._refused((*path, key), value[key], RefusalError(refusal.because, remedy))
        return Call(function, keywords)

    def _argument(self, path: KeyPath) -> Part:
        """What a call is given: plain values as they are; calls and objects at any depth of them."""
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

    def _object(self, path: KeyPath, text: str, sort: Sort) -> Any:
        found = self._resolved(path, text)
        is_class = inspect.isclass(found)
        fits = {
            Sort.OBJECT: not is_class and not inspect.isroutine(found),
            Sort.FUNCTION: callable(found) and not is_class,
            Sort.CALLABLE: callable(found),
            Sort.CLASS: is_class,
            Sort.EITHER: is_class or not inspect.isroutine(found),
        }[sort]
        if found is not None and not fits:
            remedy = f"to call it, write '{{call: {text}}}'" if callable(found) else "name another"
            kind = "a class" if is_class else f"a {type(found).__name__}"
            self._refused(path, text, RefusalError(f"that is {kind}, and {sort.value} is needed", remedy))
        return found

    def _resolved(self, path: KeyPath, text: str) -> Any:
        """The object that `text` leads to; None where it leads to nothing that can be used, which is then told."""
        try:
            found = resolve(text)
        except RefusalError as refusal:
            if refusal.__cause__ is not None:
                self.causes.append(refusal.__cause__)
            self._refused(path, text, refusal)
            return None
        if found is None:
            self._refused(path, text, RefusalError("that is None", "name something else"))
        return found

    def _refused(self, path: KeyPath, value: object, refusal: RefusalError) -> Part:
        """Tell what is wrong with `value`; gives what stands in its place, so that reading goes on."""
        sentence = problem({".".join(map(str, path)): value}, refusal)
        self.document.problems.append(self.document.located([path], sentence))
        return Value(None)
