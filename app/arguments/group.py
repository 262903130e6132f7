"""`Arguments`: what every group of arguments, and every class that users derive from one, has in common.

Such a class is an attrs class and, to the outside, a dataclass. Users derive from it with either decorator, and either
writes an `__init__` that first sets every field and then comes to `__post_init__`. Values are therefore taken as they
come until `__post_init__` has looked at all of them at once; from then on each assignment is checked as it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import Field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from hexloop.app.arguments.construction import TakingOldNames
from hexloop.app.arguments.dataclass_face import show_as_dataclass
from hexloop.app.arguments.declare import Declaration
from hexloop.app.arguments.introspection import declarations, default_of, rules
from hexloop.app.arguments.names import unknown_argument
from hexloop.app.arguments.old_names import OLD_NAMES
from hexloop.app.arguments.translation import is_old, translated, warn_of_kept
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, RefusalError, problem


class Arguments(metaclass=TakingOldNames):
    """Base of argument groups. To make one raises `ConfigurationError` with every problem there is."""

    __attrs_attrs__: ClassVar[Any]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _made = False

    def __attrs_post_init__(self) -> None:
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check everything. A subclass with a `__post_init__` of its own calls this one from it."""
        self.check()
        self._made = True

    def check(self) -> None:
        """Derive what is left open, then check every argument and every rule, as is due after a series of assignments.

        Raises:
            ConfigurationError: with every problem there is.
        """
        refused = self._refused_alone()
        problems = [problem({name: value}, refusal) for name, (value, refusal) in refused.items()]
        self._settle()
        problems += self._refused_together(refused)
        if problems:
            vars(self).update({name: value for name, (value, _) in refused.items()})
            raise ConfigurationError(problems)

    def assign(self, **values: Any) -> None:
        """Set several arguments, or none of them if one is refused.

        Raises:
            ConfigurationError: with a problem for each value that is refused.
        """
        kind: type = type(self)
        warn_of_kept(kind, values)
        accepted: dict[str, Any] = {}
        values, problems = translated(kind, values, vars(self))
        for name, value in values.items():
            if name not in self._declared:
                problems.append(unknown_argument(name, value, self._declared))
                continue
            try:
                accepted[name] = self._accepted(name, value)
            except RefusalError as refusal:
                problems.append(problem({name: value}, refusal))
        if problems:
            raise ConfigurationError(problems)
        for name, value in accepted.items():
            vars(self)[name] = value
            twin = self._declared[name][0].twin
            if twin is not None:
                vars(self)[twin] = value

    if not TYPE_CHECKING:  # a type checker that saw it would let every misspelt attribute pass

        def __setattr__(self, name: str, value: object) -> None:
            if self._made and (name in self._declared or is_old(type(self), name)):
                self.assign(**{name: value})
            elif is_old(type(self), name):
                self._take_old(name, value)
            else:
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            if name in OLD_NAMES:
                return OLD_NAMES[name].reads(self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _take_old(self, name: str, value: object) -> None:
        """What a subclass's own `__post_init__` says by an old name, before it calls this class's."""
        present, problems = translated(type(self), {name: value}, vars(self))
        if problems:
            raise ConfigurationError(problems)
        for each, meant in present.items():
            setattr(self, each, meant)

    def to_dict(self) -> dict[str, Any]:
        """The arguments by name, enumerations as their values, and what is called a token left out of sight."""
        names = [field.name for field in self.__dataclass_fields__.values() if field.init]
        return {name: f"<{name.upper()}>" if name.endswith("_token") else _plain(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        """Every argument and its value, one a line."""
        lines = [f"    {name}={value!r},\n" for name, value in self.to_dict().items()]
        return f"{type(self).__name__}(\n{''.join(lines)})"

    def _settle(self) -> None:
        """Derive values that are left open from others. A group that has some extends this, calling `super` first."""

    @property
    def _declared(self) -> Mapping[str, tuple[Declaration, Any]]:
        kind: type = type(self)
        return declarations(kind)

    def _accepted(self, name: str, value: object) -> Any:
        declaration, kind = self._declared[name]
        return declaration.accepted(value, kind)

    def _refused_alone(self) -> dict[str, tuple[object, RefusalError]]:
        """Convert and check each argument by itself. Those refused are returned, and have their defaults meanwhile."""
        refused = {}
        for name in self._declared:
            value = getattr(self, name)
            try:
                vars(self)[name] = self._accepted(name, value)
            except RefusalError as refusal:
                refused[name] = (value, refusal)
                vars(self)[name] = default_of(type(self), name)
        return refused

    def _refused_together(self, refused_alone: Container[str]) -> list[Problem]:
        problems = []
        kind: type = type(self)
        for rule in rules(kind):
            if not any(name in refused_alone for name in rule.names):
                try:
                    rule.check(self)
                except RefusalError as refusal:
                    problems.append(problem({name: getattr(self, name) for name in rule.names}, refusal))
        return problems

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        """What attrs calls once it has made an attrs class of a subclass."""
        show_as_dataclass(cls)
        if vars(cls).get("__attrs_own_setattr__"):
            # attrs wrote a __setattr__ for the hooks of the subclass's own fields, which knows nothing of arguments.
            _check_before(cls, vars(cls)["__setattr__"])


def _check_before(cls: type[Arguments], generated: Callable[[Any, str, object], None]) -> None:
    def setattr_of_both(self: Arguments, name: str, value: object) -> None:
        if name in self._declared:
            Arguments.__setattr__(self, name, value)
        else:
            generated(self, name, value)

    cls.__setattr__ = setattr_of_both  # type: ignore[assignment, method-assign]
    cls.__attrs_own_setattr__ = False  # type: ignore[attr-defined]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for spelled in ("to_dict", "to_json"):
        if hasattr(value, spelled):
            return getattr(value, spelled)()
    return value
