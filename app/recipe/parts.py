"""What a recipe's values stand for: data as they are, or calls to be made when the run is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen


class Part(Protocol):
    """Something that a recipe describes."""

    def make(self) -> Any:
        """The thing itself; raises whatever the recipe's own code raises."""
        ...


@frozen
class Value:
    """A thing that is there already."""

    value: Any

    def make(self) -> Any:
        """The thing."""
        return self.value


@frozen
class Call:
    """The result of calling `function` with keywords that are made first."""

    function: Callable[..., Any]
    keywords: Mapping[str, Part]

    def make(self) -> Any:
        """What the function returns."""
        return self.function(**{name: part.make() for name, part in self.keywords.items()})


@frozen
class Several:
    """A list."""

    items: Sequence[Part]

    def make(self) -> Any:
        """The list of what the items are."""
        return [part.make() for part in self.items]


@frozen
class Named:
    """A mapping."""

    items: Mapping[str, Part]

    def make(self) -> Any:
        """The mapping to what the items are."""
        return {name: part.make() for name, part in self.items.items()}
