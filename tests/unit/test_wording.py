"""Wording of messages: suggestions for misspelt names, shown values, lists, truth words."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import get_args

import pytest

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import (
    RefusalError,
    Topic,
    did_you_mean,
    enumeration,
    parse_truth,
    problem,
    shown,
    shown_as,
    troubleshooting,
    variable_truth,
)


class Color(StrEnum):
    """An enumeration whose values are shown."""

    RED = "red"


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("learnign_rate", ["learning_rate", "weight_decay"], "did you mean learning_rate?"),
        ("learning-rate", ["learning_rate"], "did you mean learning_rate?"),
        ("ordereddict", ["OrderedDict", "deque"], "did you mean OrderedDict?"),
        ("xyz", ["learning_rate"], "leave it out"),
        ("xyz", [], "leave it out"),
    ],
)
def test_the_closest_name_is_suggested(name: str, known: list[str], expected: str) -> None:
    """The closest known name is suggested, whatever its case and dashes; otherwise the given remedy is returned."""
    assert did_you_mean(name, known, "leave it out") == expected


def test_the_caller_chooses_spelling_and_similarity() -> None:
    """`spell` formats the suggestion; a higher `similarity` rejects distant names."""
    assert did_you_mean("sdg", ["sgd"], "", spell=repr) == "did you mean 'sgd'?"
    assert did_you_mean("sdg", ["sgd"], "leave it out", similarity=0.7) == "leave it out"


@pytest.mark.parametrize("text", ["true", "Yes", "ON", "1", "t", " y "])
def test_words_for_true(text: str) -> None:
    """Words for true are read in any letter case."""
    assert parse_truth(text) is True


@pytest.mark.parametrize("text", ["false", "No", "OFF", "0", "f", "n"])
def test_words_for_false(text: str) -> None:
    """Words for false are read in any letter case."""
    assert parse_truth(text) is False


@pytest.mark.parametrize("text", ["", "perhaps", "2"])
def test_other_words_are_not_truth_values(text: str) -> None:
    """Any other word is parsed as None."""
    assert parse_truth(text) is None


def test_lists_read_as_in_english() -> None:
    """A list is joined with commas and a final "and" or "or"."""
    assert enumeration(["a"]) == "a"
    assert enumeration(["a", 2], "or") == "a or 2"
    assert enumeration("abc") == "a, b and c"


def test_values_are_shown_short_and_tokens_are_hidden() -> None:
    """Long text is shortened, an enumeration member is shown as its value, the text of a token is hidden."""
    assert len(shown("x" * 1000)) <= 80
    assert shown(Color.RED) == "'red'"
    assert shown_as("hub_token", "secret") == "'<hidden>'"
    assert shown_as("hub_token", None) == "None"
    assert shown_as("run_name", "secret") == "'secret'"


def test_a_problem_is_a_sentence_with_its_arguments() -> None:
    """A problem ends in a full stop, or in the question mark of its remedy."""
    refused = problem({"seed": -1}, RefusalError("it is negative", "choose 0 or more"))
    assert refused == "You chose seed=-1, but it is negative; choose 0 or more."
    assert refused.names == ("seed",)
    assert problem({"a": 1, "b": 2}, RefusalError("no", "did you mean c?")).endswith("c?")


def test_variables_are_truth_values() -> None:
    """An empty environment variable is False; other text must be a truth word."""
    assert variable_truth("USE_IT", "yes") is True
    assert variable_truth("USE_IT", " ") is False
    with pytest.raises(ConfigurationError, match="USE_IT='perhaps', but it takes a truth value; set true or false"):
        variable_truth("USE_IT", "perhaps")


def test_every_topic_has_its_section() -> None:
    """Messages refer to headings of the page on troubleshooting, by the anchors that its builders give them."""
    page = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
    headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(get_args(Topic)) <= set(headings) | {heading[:1].lower() + heading[1:] for heading in headings}
    assert troubleshooting("out of memory") == "see docs/troubleshooting.md#out-of-memory"
    assert troubleshooting("NaN loss") == "see docs/troubleshooting.md#nan-loss"


@pytest.mark.parametrize("topic", get_args(Topic))
def test_every_topic_is_named_by_a_message(topic: str) -> None:
    """A section that no message names would not be found."""
    folders = [Path(__file__).parents[2] / name for name in ("app", "domain", "adapters")]
    calls = re.compile(rf"""troubleshooting\(["']{re.escape(topic)}["']\)""")
    assert any(calls.search(path.read_text(encoding="utf-8")) for folder in folders for path in folder.rglob("*.py"))
