"""The parser and that of transformers, side by side: files, dictionaries, types, help, subclasses, and errors."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import transformers

import hexloop

PARSERS: dict[str, Any] = {"transformers": transformers.HfArgumentParser, "hexloop": hexloop.HfArgumentParser}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Options:
    name: str = field(default="n", metadata={"help": "the name, 100%% of it"})
    flag: bool = False
    on: bool = field(default=True, metadata={"help": "whether it is on"})
    number: int = 1
    rate: float = 1.0
    optional: int | None = None
    words: list[str] = field(default_factory=list)
    mapping: dict[str, Any] = field(default_factory=dict)
    literal: Literal["a", "b", 3] = "a"
    union: str | dict | None = None  # type: ignore[type-arg]
    numbers: list[int] | None = None
    truth: bool | None = None
    colour: Colour = Colour.RED
    short: int = field(default=2, metadata={"aliases": ["-s"]})


@dataclass
class Needing:
    first: int
    words: list[str]


@dataclass
class Raising:
    first: int = 1

    def __post_init__(self) -> None:
        raise KeyError("the class's own error")


@dataclass
class Grouped:
    _argument_group_name: ClassVar[str] = "options of a group"
    grouped: int = 1


def outcome(action: Callable[[], Any]) -> Any:
    """Return the names, types and values of the objects, or the built-in class of the error."""
    try:
        made = action()
    except (Exception, SystemExit) as error:
        return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return [
        {name: (type(value), value) for name, value in vars(each).items()} if hasattr(each, "__dict__") else each
        for each in made
    ]


def assert_same(action: Callable[[Any], Any]) -> None:
    """Both return the same objects, or raise an error that an `except` for that of transformers catches."""
    theirs, ours = (outcome(lambda parser=parser: action(parser)) for parser in PARSERS.values())  # type: ignore[misc]
    if isinstance(theirs, type):
        with pytest.raises(theirs):
            action(hexloop.HfArgumentParser)
    else:
        assert ours == theirs


YAML = [
    "flag: no", "flag: yes", "on: true", "rate: 1e-4", "rate: 1.0e-4", "number: 010", "number: 0x1F", "number: 1:30",
    "number: 1_000", "optional: ~", "optional: null", "words: [a, b]", "words:\n- a\n- b", "mapping: {a: 1}",
    "name: 2020-01-01", "name: y", "name: no", 'name: "no"', "name: &x foo\nunion: *x", "name: !!str 3", "rate: .inf",
    "off: 3", "unknown: 3", "name: [", "[1, 2]",
]  # fmt: skip


@pytest.mark.parametrize("text", YAML)
@pytest.mark.parametrize("extra", [False, True])
def test_yaml_files(text: str, extra: bool, tmp_path: Path) -> None:
    """Values have the same types, those of YAML 1.1."""
    file = tmp_path / "options.yaml"
    file.write_text(text)

    if text == "name: [":  # the class of this error is PyYAML's
        with pytest.raises(ValueError, match="Invalid YAML"):
            hexloop.HfArgumentParser(Options).parse_yaml_file(file)
    else:
        assert_same(lambda parser: parser(Options).parse_yaml_file(file, allow_extra_keys=extra))


@pytest.mark.parametrize(
    "text", ['{"number": 3, "words": ["a"], "optional": null}', '{"number": 3,', '{"other": 1}', "[1]", '{"rate": NaN}']
)
@pytest.mark.parametrize("extra", [False, True])
def test_json_files(text: str, extra: bool, tmp_path: Path) -> None:
    """By a path as text or as an object."""
    file = tmp_path / "options.json"
    file.write_text(text)

    if "NaN" in text:
        (made,) = hexloop.HfArgumentParser(Options).parse_json_file(str(file))
        assert made.rate != made.rate
    else:
        assert_same(lambda parser: parser(Options).parse_json_file(file, allow_extra_keys=extra))
        assert_same(lambda parser: parser(Options).parse_json_file(str(file), allow_extra_keys=extra))


@pytest.mark.parametrize("values", [{"first": 1}, {"first": 1, "words": ["a"]}, {"first": "x", "words": 3, "more": 1}])
@pytest.mark.parametrize("extra", [False, True])
def test_dictionaries(values: dict[str, Any], extra: bool) -> None:
    """Values are taken as they are; missing and additional ones are errors of the same classes."""
    assert_same(lambda parser: parser(Needing).parse_dict(values, allow_extra_keys=extra))
    assert_same(lambda parser: parser((Needing, Options)).parse_dict(values, allow_extra_keys=extra))


LINES = [
    "", "--optional 3", "--literal 3", "--literal b", "--literal z", "--words a b", "--words",
    "--numbers 1 2", "--numbers x", "--truth true", "--truth no", "--no_on", "--no-on", "--on false", "--flag",
    "--flag=true", "--colour blue", "--colour green", "--number=-3", "--number 1 --number 2", "--numb 3", "-s 4",
    "--unknown 3", "stray",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_lines(line: str) -> None:
    """Including those with remaining strings, which both return in the same order."""
    words = line.split()

    assert_same(lambda parser: parser(Options).parse_args_into_dataclasses(words))
    if "--no" not in line:
        assert_same(lambda parser: parser(Options).parse_args_into_dataclasses(words, return_remaining_strings=True))


def test_files_of_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's own file, a named one, those of an option, and the command line, in this order."""
    script, one, two = tmp_path / "script.py", tmp_path / "one.args", tmp_path / "two.args"
    (tmp_path / "script.args").write_text("--number 5 --name script")
    one.write_text("--number 7")
    two.write_text("--number 8 --rate 2")
    monkeypatch.setattr(sys, "argv", [str(script), "--name", "line"])
    ways: list[dict[str, Any]] = [
        {},
        {"args": ["--rate", "3"]},
        {"args": [], "look_for_args_file": False},
        {"args": ["--name", "x"], "args_filename": str(one)},
        {"args": ["--name", "x"], "args_filename": one, "look_for_args_file": False},
        {"args": ["--from", str(one), "--from", str(two), "--rate", "4"], "args_file_flag": "--from"},
    ]
    for given in ways:
        assert_same(lambda parser, given=given: parser(Options).parse_args_into_dataclasses(**given))  # type: ignore[misc]


@pytest.mark.parametrize("missing", ["parse_json_file", "parse_yaml_file"])
def test_missing_files(missing: str, tmp_path: Path) -> None:
    """Are a FileNotFoundError in both."""
    assert_same(lambda parser: getattr(parser(Options), missing)(tmp_path / "missing"))


def unresolved() -> type:
    @dataclass
    class Unresolved:
        first: Nowhere = 1  # type: ignore[name-defined]  # noqa: F821

    return Unresolved


@pytest.mark.parametrize("cls", [int, unresolved(), Raising])
def test_classes_that_cannot_be_parsed(cls: Any) -> None:
    """Types without fields, unresolved types, and errors of the class itself."""
    assert_same(lambda parser: parser(cls).parse_args_into_dataclasses([]))


def test_options_that_the_script_adds() -> None:
    """Come back in a namespace; defaults may be set."""

    def added(parser: Any) -> Any:
        made = parser((Options, Grouped))
        made.add_argument("--more", type=int, default=3)
        made.set_defaults(number=42, more=5)
        return made.parse_args_into_dataclasses(["--grouped", "4"])

    assert_same(added)


def test_help() -> None:
    """Both show the texts, the defaults, the opposites and the groups."""
    for parser in PARSERS.values():
        text = parser((Options, Grouped), prog="script").format_help()
        for part in ("the name, 100% of it", "(default: n)", "--no_on", "--no-on", "{red,blue}", "options of a group"):
            assert part in text, part


def subclass_of(library: Any) -> Any:
    @dataclass
    class Own(library.TrainingArguments):  # type: ignore[misc]
        _VALID_DICT_FIELDS = [*library.TrainingArguments._VALID_DICT_FIELDS, "model_kwargs"]  # noqa: RUF012
        model_kwargs: dict | str | None = field(default=None, metadata={"help": "keywords of the model"})  # type: ignore[type-arg]
        beta: float = 0.1
        learning_rate: float = field(default=7e-7, metadata={"help": "another default"})

    Own.__annotations__ = {"model_kwargs": dict | str | None, "beta": float, "learning_rate": float}
    return Own


def test_subclasses_of_training_arguments(tmp_path: Path) -> None:
    """Fields, defaults and JSON text as libraries such as trl declare them, from a line, a dictionary and a file."""
    line = ["--output_dir", str(tmp_path), "--model_kwargs", '{"a": "1", "b": "true"}', "--use_cpu", "--fp16", "False"]
    values = {"output_dir": str(tmp_path), "model_kwargs": '{"a": 2.5}', "lr_scheduler_kwargs": '{"num_cycles": 2}'}
    file = tmp_path / "options.json"
    file.write_text(json.dumps(values))
    found = {}
    for name, library in (("transformers", transformers), ("hexloop", hexloop)):
        parser = PARSERS[name](subclass_of(library))
        made = [
            *parser.parse_args_into_dataclasses(line),
            *parser.parse_dict(values),
            *parser.parse_json_file(str(file)),
        ]
        names = ("model_kwargs", "beta", "learning_rate", "lr_scheduler_kwargs", "use_cpu", "fp16")
        found[name] = [[getattr(each, attribute) for attribute in names] for each in made]

    assert found["hexloop"] == found["transformers"]
    assert found["hexloop"][0][0] == {"a": 1, "b": True}


def test_overridden_steps_of_the_constructor() -> None:
    """Subclasses see every class and every field, with its type resolved, and may add classes later."""
    seen: dict[str, list[Any]] = {}

    def kind_of(name: str, base: Any) -> Any:
        seen[name] = []

        class Watching(base):  # type: ignore[misc]
            def _add_dataclass_arguments(self, dtype: Any) -> None:
                seen[name].append(dtype.__name__)
                super()._add_dataclass_arguments(dtype)

            @staticmethod
            def _parse_dataclass_field(parser: Any, field: dataclasses.Field[Any]) -> None:
                seen[name].append((field.name, field.type))
                base._parse_dataclass_field(parser, field)

        return Watching

    found = {}
    for name, base in PARSERS.items():
        parser = kind_of(name, base)((Needing, Grouped))
        parser._add_dataclass_arguments(Added)
        line = ["--first", "1", "--words", "a", "--added", "3"]
        found[name] = outcome(partial(parser.parse_args_into_dataclasses, line))

    assert seen["hexloop"] == seen["transformers"]
    assert ("first", int) in seen["hexloop"]
    assert found["hexloop"] == found["transformers"]
    assert found["hexloop"][2] == {"added": (int, 3)}


@dataclass
class Added:
    added: int = 1
