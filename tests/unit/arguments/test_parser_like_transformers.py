"""The parser accepts every command line that the parser of transformers accepts, with the same result."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexloop.app.arguments.parser import HfArgumentParser
from tests.examples import examples
from tests.unit.arguments.parser_classes import Plain

NEEDED = ["--name", "n", "--needed", "blue"]

CHUNKS: dict[str, list[str]] = {
    "count": ["--count 7", "--count=-2", "--count 1.5", "--count", "--count x"],
    "rate": ["--rate 1e-3", "--rate 5", "--rate -0.5", "--rate x"],
    "text": ["--text hello", "--text None", "--text="],
    "maybe": ["--maybe 2", "--maybe none"],
    "old_style": ["--old_style 3", "--old-style 4", "--old_style x"],
    "flag": ["--flag", "--flag true", "--flag False", "--flag YES", "--flag n", "--flag 1", "--flag maybe", "--flag=0"],
    "other_flag": ["--other_flag", "--no_other_flag", "--no-other-flag", "--other_flag no", "--other-flag t"],
    "unset": ["--unset true", "--unset f", "--unset 2"],
    "set_flag": ["--set_flag", "--set_flag off?", "--no_set_flag", "--set_flag false"],
    "bare": ["--bare", "--bare 0"],
    "colour": ["--colour red", "--colour blue", "--colour RED", "--colour green"],
    "word": ["--word a", "--word 42", "--word c"],
    "size": ["--size 1", "--size 20", "--size 2"],
    "numbers": ["--numbers 1", "--numbers 3 4 5", "--numbers", "--numbers 1 x"],
    "words": ["--words a b", "--words a"],
    "rates": ["--rates 1 2.5", "--rates x"],
    "needed": ["--needed red"],
    "name": ["--name other", "--name"],
    "path": ["--path some/where"],
    "number_or_text": ["--number_or_text 8"],
    "mapping_or_text": ['--mapping_or_text {"a":1}', "--mapping_or_text plain"],
    "spelled": ["--spelled x", "--example y", "-e z", "-e"],
    "abbreviated": ["--cou 4", "--rat 3", "--oth"],
    "unknown": ["--unknown 3", "stray", "--no_flag_at_all"],
}
"""Words for each field: right, wrong and odd ones."""

OURS, THEIRS = HfArgumentParser(Plain), transformers.HfArgumentParser(Plain)  # type: ignore[arg-type]


def outcome(parser: Any, words: list[str]) -> Any:
    """Return the object as names, types and values, or None if the command line is rejected."""
    try:
        (made,) = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    except (SystemExit, ValueError):
        return None
    return {name: (type(value), value) for name, value in vars(made).items()}


@pytest.mark.parametrize("chunk", [chunk for chunks in CHUNKS.values() for chunk in chunks])
def test_one_option(chunk: str) -> None:
    """Each single option gives the same value, or is rejected, in both libraries."""
    words = [*NEEDED, *chunk.split()]
    assert outcome(OURS, words) == outcome(THEIRS, words)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([chunk for chunks in CHUNKS.values() for chunk in chunks]), max_size=8), st.booleans())
def test_any_command_line(capsys: pytest.CaptureFixture[str], chunks: list[str], complete: bool) -> None:
    """Any number of options in any order, with repetitions, means the same in both libraries."""
    words = [word for chunk in chunks for word in chunk.split()] + NEEDED * complete
    assert outcome(OURS, words) == outcome(THEIRS, words)
    capsys.readouterr()


def test_most_options_are_valid() -> None:
    """Most of the options above are valid, so that the comparison is meaningful."""
    lines = [[*NEEDED, *chunk.split()] for chunks in CHUNKS.values() for chunk in chunks]
    assert sum(outcome(OURS, line) is not None for line in lines) > len(lines) / 2


@pytest.mark.parametrize(
    "name", ["__init__", "parse_args_into_dataclasses", "parse_dict", "parse_json_file", "parse_yaml_file"]
)
def test_signatures(name: str) -> None:
    """Methods have the same parameters in the same order, with the same defaults."""
    ours, theirs = (
        inspect.signature(getattr(parser, name)).parameters
        for parser in (HfArgumentParser, transformers.HfArgumentParser)
    )
    assert [(each, of.default, of.kind) for each, of in ours.items()] == [
        (each, of.default, of.kind) for each, of in theirs.items()
    ]


@pytest.mark.parametrize("extra", [{}, {"more": 3}])
@pytest.mark.parametrize("allowed", [True, False])
def test_values_by_name(extra: dict[str, Any], allowed: bool) -> None:
    """Values of a mapping are passed unchanged, and unknown keys are rejected unless allowed."""
    values = {"name": "n", "needed": "red", "count": "7", "numbers": (1,), **extra}
    made = []
    for parser in (OURS, THEIRS):
        try:
            made.append(dataclasses.asdict(parser.parse_dict(values, allow_extra_keys=allowed)[0]))
        except (ValueError, TypeError) as error:
            made.append({"refused": isinstance(error, ValueError)})
    assert made[0] == made[1]
