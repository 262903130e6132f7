"""Classes with fields of every kind that scripts use as arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import attrs

from hexloop.app.arguments.parser import HfArg


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = 1
    LARGE = 20


@dataclass
class Plain:
    """Fields that the parser of transformers accepts as well."""

    name: str
    count: int = 3
    rate: float = 0.5
    text: str | None = "t"
    maybe: float | None = None
    old_style: int | None = None
    flag: bool = False
    other_flag: bool = True
    unset: bool | None = None
    set_flag: bool | None = True
    bare: bool = field(default=False, metadata={"help": "100%% sure"})
    colour: Colour = Colour.RED
    word: Literal["a", "b", 42] = "a"
    size: Size = Size.SMALL
    numbers: list[int] = field(default_factory=lambda: [1, 2])
    words: list[str] = field(default_factory=list)
    rates: list[float] | None = None
    needed: Colour = field(kw_only=True)
    path: Path = Path("here")
    number_or_text: int | str = 5
    mapping_or_text: dict[str, Any] | str | None = None
    spelled: str = HfArg(default="s", aliases=["--example", "-e"], help="with aliases")
    computed: int = field(init=False)

    def __post_init__(self) -> None:
        self.computed = self.count + 1


@dataclass
class Generous:
    """Fields that only hexloop's parser accepts, or for which it accepts more."""

    mapping: dict[str, int] = field(default_factory=dict)
    maybe_mapping: dict[str, Any] | None = None
    number: int | float | None = None
    truth_or_text: bool | str | None = None
    pair: tuple[int, ...] = (1,)
    unique: set[str] = field(default_factory=set)
    choices: list[Colour] = field(default_factory=list)
    nested: list[Literal["x", "y"]] = field(default_factory=list)
    anything: Any = None
    numbers: list[int] = field(default_factory=list)
    number_or_text: int | str = "auto"
    several_or_text: str | list[str] | None = None


@attrs.define
class Attrs:
    """An attrs class with a private name, a converter, and a default computed from other values."""

    _secret: str = "s"
    steps: int = attrs.field(default=1, converter=int, metadata={"help": "how many", "aliases": "-s"})
    kind: Colour = attrs.field(default=Colour.RED, converter=Colour)
    items: list[int] = attrs.field(factory=list)
    twice: int = attrs.field(default=attrs.Factory(lambda self: 2 * self.steps, takes_self=True))
    hidden: int = attrs.field(init=False, default=7)


@attrs.define
class Needing:
    model: str
    layers: int
