"""Rules for parameter groups: reading them, matching names, and distances to the output."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.parameter_rules import (
    LAYERS,
    LONGEST_PATTERN,
    MOST_RULES,
    GroupRule,
    distances_to_output,
    in_layers,
    matcher_of,
    matches,
    read_rules,
)

PARTS = st.sampled_from(["a", "b", "ab", "layers", "0", "1", "10", "weight", "bias"])
NAMES = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", ".", "*", "?", "0", "1", "layers", "[ab]", "weight"]), min_size=1).map(
    "".join
)


@given(NAMES, PATTERNS)
def test_a_pattern_matches_a_name_or_a_module_that_contains_it(name: str, pattern: str) -> None:
    """As `fnmatch` does, the whole name or any start of it that ends before a dot."""
    parts = name.split(".")
    starts = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    assert matcher_of([pattern])(name) == any(fnmatchcase(start, pattern) for start in starts)


@given(NAMES, st.lists(PATTERNS, max_size=4))
def test_several_patterns_match_what_one_of_them_matches(name: str, patterns: list[str]) -> None:
    assert matcher_of(patterns)(name) == any(matcher_of([pattern])(name) for pattern in patterns)


def test_a_pattern_of_many_stars_takes_no_exponential_time() -> None:
    """A regular expression of this form would not end."""
    assert not matcher_of(["*a" * (LONGEST_PATTERN // 2) + "b"])("a" * 5000)


def test_letters_are_compared_as_they_are() -> None:
    assert not matcher_of(["Encoder.*"])("encoder.weight")
    assert matcher_of(["encoder.layer.1"])("encoder.layer.1.weight")
    assert not matcher_of(["encoder.layer.1"])("encoder.layer.10.weight")


# Reading

GOOD: dict[str, Any] = {
    "params": ["a.*", "b"],
    "except": "a.bias",
    "ndim": 2,
    "learning_rate": "1e-5",
    "weight_decay": 0,
    "layer_decay": 0.75,
    "frozen": False,
    "optimizer": "sgd",
    "optim_args": "momentum=0.9",
    "betas": [0.9, 0.99],
}


def test_a_rule_is_read() -> None:
    """Numbers may be texts, as YAML has them; a key without a value is left out. Other keys are options."""
    (rule,), faults = read_rules([{**GOOD, "name": None, "learning_rate_factor": None}])
    assert not faults
    assert rule == GroupRule(
        "a.*, b",
        ("a.*", "b"),
        ("a.bias",),
        2,
        1e-5,
        None,
        0,
        0.75,
        False,
        "sgd",
        "momentum=0.9",
        {"betas": [0.9, 0.99]},
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("params", []),
        ("params", 3),
        ("params", [""]),
        ("params", ["a" * (LONGEST_PATTERN + 1)]),
        ("except", {"a": 1}),
        ("ndim", 1.5),
        ("ndim", True),
        ("ndim", -1),
        ("name", 3),
        ("name", ""),
        ("learning_rate", -1),
        ("learning_rate", "fast"),
        ("learning_rate", float("nan")),
        ("learning_rate", True),
        ("learning_rate_factor", -0.1),
        ("weight_decay", float("inf")),
        ("layer_decay", 0),
        ("layer_decay", 1.1),
        ("frozen", "maybe"),
        ("optimizer", 1),
        ("optim_args", ["a"]),
    ],
)
def test_a_wrong_value_is_named_by_its_rule_and_key(key: str, value: Any) -> None:
    given = {"params": "a", "optimizer": "sgd", key: value}
    rules, faults = read_rules([{"params": "b"}, given])
    assert [rule.params for rule in rules] == [("b",)]
    assert [path for path, _ in faults] == [(1, key)]


@pytest.mark.parametrize(
    "wrong", [3, "text", [3], [[]], [{}], [{"learning_rate": 1}], [{"params": "a"}] * (MOST_RULES + 1)]
)
def test_what_is_no_list_of_rules_is_refused(wrong: Any) -> None:
    _, faults = read_rules(wrong)
    assert faults


def test_all_problems_are_found_at_once() -> None:
    _, faults = read_rules(
        [
            {"params": "a", "learning_rate": 1, "learning_rate_factor": 2},
            {"parms": "b", "layer_decay": 5},
            {"params": "c", "optim_args": "a=1"},
        ]
    )
    assert [path for path, _ in faults] == [(0, "learning_rate_factor"), (1, "layer_decay"), (1,), (2, "optim_args")]
    assert "did you mean params?" in str(faults[2][1])


def test_two_rules_have_different_names() -> None:
    _, faults = read_rules([{"params": "a", "name": "x"}, {"params": "b", "name": "x"}])
    assert "two rules have the name 'x'" in str(faults[0][1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from([*GOOD, "lr", "eps"]), JSON, max_size=4), max_size=3) | JSON)
def test_anything_is_read_or_refused(given: Any) -> None:
    """No value raises, and what is accepted can be matched."""
    rules, _ = read_rules(given)
    for rule in rules:
        rule.matcher()("a.weight", 2)


# Matching

SHAPES = {"embed.weight": 2, "layers.0.weight": 2, "layers.0.bias": 1, "layers.1.weight": 2, "head.weight": 2}


def rules_of(*given: dict[str, Any]) -> list[GroupRule]:
    rules, faults = read_rules(list(given))
    assert not faults
    return rules


def test_each_parameter_gets_its_rule() -> None:
    rules = rules_of(
        {"params": "layers", "ndim": 2}, {"params": "*.bias"}, {"params": "*", "except": ["layers", "head"]}
    )
    found, problems = matches(rules, SHAPES)
    assert not problems
    assert found == {"layers.0.weight": 0, "layers.1.weight": 0, "layers.0.bias": 1, "embed.weight": 2}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"params": ["layers.0", "laiers.1"]}], "'laiers.1' in params of the rule 'layers.0, laiers.1' matches no"),
        ([{"params": "layer.1"}], "did you mean layers.1?"),
        ([{"params": "layers"}, {"params": "*.bias"}], "both match layers.0.bias"),
        ([{"params": "layers", "ndim": 3}], "is for no parameter"),
        ([{"params": "head", "except": "*.weight"}], "is for no parameter"),
    ],
)
def test_rules_that_do_not_fit_are_problems(given: list[dict[str, Any]], said: str) -> None:
    _, problems = matches(rules_of(*given), SHAPES)
    assert len(problems) == 1
    assert said in problems[0]


@given(st.lists(st.lists(PATTERNS, min_size=1, max_size=2), max_size=3), st.lists(NAMES, unique=True, max_size=6))
def test_every_match_is_of_a_rule_that_matches(patterns: list[list[str]], names: list[str]) -> None:
    """A parameter that two rules match is reported, and one that no rule matches has none."""
    rules = [GroupRule(str(number), tuple(each)) for number, each in enumerate(patterns)]
    found, problems = matches(rules, dict.fromkeys(names, 1))
    for name in names:
        of = [number for number, rule in enumerate(rules) if rule.matcher()(name, 1)]
        assert found.get(name) == (of[0] if of else None)
        assert len(of) < 2 or any("both match" in problem for problem in problems)


# Depth


def names_of(stack: str, layers: int, *around: str) -> list[str]:
    first, *last = around
    return [first, *(f"{stack}.{number}.{leaf}" for number in range(layers) for leaf in ("weight", "bias")), *last]


@given(
    st.sampled_from([f"{before}{name}" for name in LAYERS for before in ("", "model.", "bert.encoder.")]),
    st.integers(1, 12),
)
def test_depth_is_counted_from_the_output(stack: str, layers: int) -> None:
    """The head is at 0, layer i of n at n - i, embeddings at n + 1."""
    names = names_of(stack, layers, "model.tokens.weight", "norm.weight", "head.weight")
    found = distances_to_output(names)
    assert found["head.weight"] == found["norm.weight"] == 0
    assert found["model.tokens.weight"] == layers + 1
    assert all(found[f"{stack}.{number}.bias"] == layers - number for number in range(layers))
    assert in_layers(names) == {name for name in names if name.startswith(f"{stack}.")}


def test_two_lists_of_layers_count_by_themselves() -> None:
    names = [
        "shared.weight", "encoder.layers.0.w", "encoder.layers.1.w", "encoder.norm.w", "decoder.embed_positions.w",
        "decoder.layers.0.w", "decoder.layers.1.w", "decoder.layers.2.w", "lm_head.w",
    ]  # fmt: skip
    assert [*distances_to_output(names).values()] == [4, 2, 1, 0, 4, 3, 2, 1, 0]


def test_unknown_lists_are_layers_if_there_are_no_others() -> None:
    """The longest of them; and what has no numbers has no depth."""
    names = ["embed.w", "units.0.w", "units.1.w", "units.2.w", "heads.0.w", "heads.1.w"]
    assert [*distances_to_output(names).values()] == [4, 3, 2, 1, 0, 0]
    assert set(distances_to_output(["a.weight", "b.weight"]).values()) == {0}
    assert distances_to_output([]) == {}


def test_only_layers_with_parameters_count() -> None:
    """A Sequential numbers its activations, too."""
    assert [*distances_to_output(["layers.0.weight", "layers.3.weight", "layers.5.weight"]).values()] == [3, 2, 1]


@given(st.lists(NAMES, unique=True, max_size=10))
def test_every_parameter_has_a_distance(names: list[str]) -> None:
    found = distances_to_output(names)
    assert found.keys() == set(names)
    assert all(0 <= each <= len(names) + 1 for each in found.values())
