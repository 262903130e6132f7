"""Rules for parameter groups: which parameters a rule matches, and how far each parameter is from a model's output.

A rule names parameters by patterns, in which `*` stands for any text, `?` for one character and `[...]` for one of
some characters. A pattern matches a parameter's whole name, or that of a module that contains it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Any, TypeAlias

from attrs import field, frozen

from hexloop.domain.wording import MOST_LISTED, RefusalError, did_you_mean, enumeration, listed, shown

MOST_RULES, MOST_PATTERNS, LONGEST_PATTERN = 200, 1000, 500
"""Bounds of what is read: rules, patterns of one rule, and characters of one pattern."""

Fault: TypeAlias = tuple[tuple[str | int, ...], RefusalError]
"""Where in the list of rules something is wrong (the rule's number from 0, then the key), and what."""


@frozen
class GroupRule:
    """What applies to the parameters that some patterns match.

    params, excluded: patterns of names; a parameter that `excluded` matches is not of the rule. ndim: the number of
    dimensions that a parameter must have; None for any. learning_rate: the peak rate. learning_rate_factor: multiplies
    the peak rate of the optimizer. weight_decay: of all its parameters; None for that of the run, except for biases and
    norms. layer_decay: multiplies the rate once for each layer between a parameter and the output. frozen: the
    parameters are not trained. optimizer, optim_args: the name of an optimizer of its own, and its options.
    options: other options of the optimizer's group, such as betas.
    """

    name: str
    params: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    ndim: int | None = None
    learning_rate: float | None = None
    learning_rate_factor: float | None = None
    weight_decay: float | None = None
    layer_decay: float | None = None
    frozen: bool = False
    optimizer: str | None = None
    optim_args: str | None = None
    options: Mapping[str, Any] = field(factory=dict)

    def matcher(self) -> Callable[[str, int], bool]:
        """Return a function that tells from a parameter's name and number of dimensions whether the rule is for it."""
        matches, excludes = matcher_of(self.params), matcher_of(self.excluded)
        return lambda name, ndim: (
            (self.ndim is None or ndim == self.ndim) and matches(name) and not (self.excluded and excludes(name))
        )


def matcher_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return whether any of some patterns matches a name, as a function. It takes linear time in both lengths."""
    if not patterns:
        return lambda _name: False
    found = re.compile("|".join(f"(?:{_expression(pattern)})" for pattern in patterns))
    return lambda name: found.match(name) is not None


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern: of the whole name, or of the modules at its start."""
    whole = translate(
        pattern
    )  # "(?s:...)" and the end; stars are atomic groups, which do not backtrack into each other
    return whole if pattern.endswith("*") else rf"{whole[:-2]}(?:\.|\Z)"


# Reading


def read_rules(given: Any) -> tuple[list[GroupRule], list[Fault]]:
    """Return the rules in a list of mappings, and everything that is wrong with it. A single mapping is one rule."""
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, list | tuple):
        return [], [((), RefusalError("it takes a list of rules", EXAMPLE))]
    if len(given) > MOST_RULES:
        return [], [((), RefusalError(f"it takes at most {MOST_RULES} rules", "join some of them"))]
    rules, faults = list[GroupRule](), list[Fault]()
    for number, each in enumerate(given):
        found, wrong = _read_rule(each, number)
        faults += [((number, *path), refusal) for path, refusal in wrong]
        if found is not None and not wrong:
            rules.append(found)
    names = [rule.name for rule in rules]
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(((), RefusalError(f"two rules have the name {name!r}", "give each rule a name of its own")))
    return rules, faults


EXAMPLE = 'give one such as [{"params": "encoder.*", "learning_rate": 1e-5}]'


def _read_rule(given: Any, number: int) -> tuple[GroupRule | None, list[Fault]]:
    if not isinstance(given, Mapping):
        return None, [((), RefusalError(f"rule {number} is {shown(given)}, which is not a mapping", EXAMPLE))]
    values, faults, options = dict[str, Any](), list[Fault](), dict[str, Any]()
    for key, value in given.items():
        if key not in READERS:
            options[str(key)] = value
        elif value is not None:
            try:
                values[FIELDS.get(str(key), str(key))] = READERS[key](value)
            except RefusalError as refusal:
                faults.append(((key,), refusal))
    if given.get("params") is None:
        remedies = (did_you_mean(key, ["params"], "") for key in options)
        remedy = next(filter(None, remedies), "give it patterns of parameter names")
        faults.append(((), RefusalError(f"rule {number} has no params", remedy)))
    faults += _conflicts(values, number)
    if faults:
        return None, faults
    values.setdefault("name", default_name(values["params"]))
    return GroupRule(**values, options=options), []


def default_name(patterns: Sequence[str]) -> str:
    """Return the name of a rule that has none: its patterns, shortened."""
    text = ", ".join(patterns)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _conflicts(values: Mapping[str, Any], number: int) -> Iterator[Fault]:
    if "learning_rate" in values and "learning_rate_factor" in values:
        yield (
            ("learning_rate_factor",),
            RefusalError(f"rule {number} has a learning_rate as well", "give one of them"),
        )
    if "optim_args" in values and "optimizer" not in values:
        because = f"rule {number} has no optimizer of its own"
        yield ("optim_args",), RefusalError(because, "name one as optimizer, or give the options as keys of the rule")


def _patterns(value: Any) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else value
    remedy = 'give a pattern of parameter names such as "encoder.*", or a list of them'
    if not isinstance(patterns, list | tuple) or not all(isinstance(each, str) and each for each in patterns):
        raise RefusalError("it takes a text or a list of texts", remedy)
    if not patterns:
        raise RefusalError("it has no pattern", remedy)
    if len(patterns) > MOST_PATTERNS or max(map(len, patterns)) > LONGEST_PATTERN:
        raise RefusalError(f"it takes at most {MOST_PATTERNS} patterns of {LONGEST_PATTERN} characters", "use *")
    return tuple(patterns)


def number_in(value: Any) -> float | None:
    """Return a finite number, also one that is written as text, such as 1e-5 in YAML; None if it is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _number(least: float, most: float = math.inf, above: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = number_in(value)
        if number is None:
            raise RefusalError("it takes a number", "give one")
        if number < least or number > most or (above and number == least):
            bound = f"above {least:g}" if above else f"at least {least:g}"
            raise RefusalError(f"it must be {bound}{'' if most == math.inf else f' and at most {most:g}'}", "change it")
        return number

    return read


def _dimensions(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RefusalError("it takes a number of dimensions", "give a whole number, such as 2 for matrices")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RefusalError("it takes true or false", "give one of them")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_PATTERN:
        raise RefusalError("it takes a text", "give one")
    return value


READERS: Mapping[str, Callable[[Any], Any]] = {
    "params": _patterns,
    "except": _patterns,
    "ndim": _dimensions,
    "name": _text,
    "learning_rate": _number(0),
    "learning_rate_factor": _number(0),
    "weight_decay": _number(0),
    "layer_decay": _number(0, 1, above=True),
    "frozen": _truth,
    "optimizer": _text,
    "optim_args": _text,
}
"""The keys of a rule. All others are options of the optimizer."""

FIELDS = {"except": "excluded"}
"""The fields of a rule that are not named as their key is."""

INSTEAD = {"lr": "learning_rate", "initial_lr": "learning_rate", "max_lr": "learning_rate", "patterns": "params"}
"""What to write for names that other libraries use."""


# Matching


def matches(rules: Sequence[GroupRule], shapes: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """Return for each parameter that a rule is for the rule's number, and a problem for each rule that does not fit.

    shapes: the number of dimensions of each parameter, by name. Problems: a pattern without a parameter, and
    parameters that two rules match.
    """
    found: dict[str, int] = {}
    twice: dict[tuple[int, int], list[str]] = {}
    problems = []
    for number, rule in enumerate(rules):
        for pattern in rule.params:
            matched = matcher_of([pattern])
            if not any(map(matched, shapes)):
                problems.append(_without_match(pattern, rule, shapes))
        applies, several = rule.matcher(), False
        for name, ndim in shapes.items():
            if not applies(name, ndim):
                continue
            several = True
            if name in found:
                twice.setdefault((found[name], number), []).append(name)
            else:
                found[name] = number
        if not several and all(any(map(matcher_of([pattern]), shapes)) for pattern in rule.params):
            problems.append(
                f"The rule {rule.name!r} of param_groups is for no parameter: all that its patterns match are left out "
                "by except or ndim; change them, or remove the rule."
            )
    for (first, second), names in twice.items():
        problems.append(
            f"The rules {rules[first].name!r} and {rules[second].name!r} of param_groups both match "
            f"{listed(names, ', ')}, but a parameter is in one group; leave such parameters out of one of the rules "
            "with except."
        )
    return found, problems


def _without_match(pattern: str, rule: GroupRule, names: Iterable[str]) -> str:
    known = list(names)
    parts = [name.split(".") for name in known]
    modules = dict.fromkeys(".".join(each[:length]) for each in parts for length in range(1, len(each)))
    first = enumeration(known[: min(3, MOST_LISTED)]) if known else "none"
    remedy = did_you_mean(pattern, [*known, *modules], f"the model's first parameters are {first}.")
    return f"The pattern {pattern!r} in params of the rule {rule.name!r} matches no parameter of the model; {remedy}"


# Depth

LAYERS = ("layers", "layer", "h", "block", "blocks", "stages", "resblocks", "transformer_blocks")
"""The names of lists of layers, in the modules of common models."""

_NUMBERED = re.compile(r"(?:^|(?<=\.))(?P<list>[^.]+)\.(?P<number>\d{1,6})(?=\.)")


def distances_to_output(names: Sequence[str]) -> dict[str, int]:
    """Return how many layers each parameter is away from the output of the model, for layer-wise rate decay.

    names: those of all parameters, in the model's order. A layer is a numbered module of a list called one of `LAYERS`
    ("encoder.layer.3"); if there is none, of the longest list of numbered modules. What is outside of layers is at
    distance 0, as the head is; but embeddings ("embed" in the name), and whatever comes before the first layer, are
    one further away than the lowest layer. Of n layers, number i is at distance n - i, and embeddings are at n + 1, as
    in BEiT (Bao et al. 2021). Each list of layers counts by itself, such as those of an encoder and a decoder.
    Returns 0 for all parameters if there are no layers.
    """
    places = _places(names)
    numbers: dict[str, set[int]] = {}
    for stack, number in places.values():
        numbers.setdefault(stack, set()).add(number)
    if not numbers:
        return dict.fromkeys(names, 0)
    from_above = {
        (stack, number): place
        for stack, found_numbers in numbers.items()
        for place, number in enumerate(sorted(found_numbers, reverse=True), 1)
    }
    furthest = max(map(len, numbers.values())) + 1
    found, before = dict[str, int](), True
    for name in names:
        if name in places:
            found[name], before = from_above[places[name]], False
        else:
            found[name] = furthest if before or "embed" in name.lower() else 0
    return found


def in_layers(names: Sequence[str]) -> set[str]:
    """Return the parameters in numbered layers; see `distances_to_output`."""
    return {*_places(names)}


def _places(names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return the list of layers that contains each parameter, by the list's name, and the number of the layer."""
    named: dict[str, tuple[str, int]] = {}
    first: dict[str, tuple[str, int]] = {}
    for name in names:
        for match in _NUMBERED.finditer(name):
            place = name[: match.end("list")], int(match["number"])
            first.setdefault(name, place)
            if match["list"] in LAYERS:
                named[name] = place
                break
    if named or not first:
        return named
    sizes: dict[str, set[int]] = {}
    for stack, number in first.values():
        sizes.setdefault(stack, set()).add(number)
    longest = max(sizes, key=lambda stack: len(sizes[stack]))
    return {name: place for name, place in first.items() if place[0] == longest}
