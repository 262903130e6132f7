"""The section `search` of a recipe: which values are tried, how they are chosen, and by what trials are judged.

A name of the space is that of an argument, an entry of an argument that is a mapping, such as
`lr_scheduler_kwargs.num_cycles`, or the path of a key elsewhere in the recipe, such as `model.width`. A trial's recipe
is the recipe with its values put there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from hexloop.app.arguments.documents import Document, KeyPath, SourceLocation
from hexloop.app.recipe.fine_tune import FINE_TUNE
from hexloop.app.recipe.parts import PartKind, PartReader, RecipePart
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.search.records import BEST, LAST, MAXIMIZE, MINIMIZE
from hexloop.domain.search.space import Choices, Distribution, Value, declared, space_function
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, problem

SEARCH = "search"
"""The key of the section."""

SPACE = "space"

LOW, HIGH, LOG, STEP, CHOICES, WHEN = "low", "high", "log", "step", "choices", "when"
"""The keys of a parameter."""

KEYS_OF_A_PARAMETER = (CHOICES, LOW, HIGH, LOG, STEP, WHEN)

EXAMPLE = "[1, 2], or {low: 1e-5, high: 1e-2, log: true}"

MOST_CHOICES = 1_000
"""How many values a parameter may list."""

MOST_CHECKED = 100
"""How many values of a parameter are checked before the search starts, the first ones."""


@frozen
class Parameter:
    """What a search tries for one name of the space.

    when: the name of another parameter, and the values of it with which this one is tried; None for always.
    """

    name: str
    distribution: Distribution
    when: tuple[str, tuple[Value, ...]] | None = None

    def is_tried(self, drawn: Mapping[str, Any]) -> bool:
        """Return whether a trial with these values of other parameters has one of this parameter."""
        return self.when is None or (self.when[0] in drawn and any(map(_same(drawn[self.when[0]]), self.when[1])))

    def examples(self) -> tuple[Value, ...]:
        """Return values that can be checked: those that are listed, or the ends of the range."""
        if isinstance(self.distribution, Choices):
            return self.distribution.values[:MOST_CHECKED]
        return (self.distribution.low, self.distribution.high)

    def as_data(self) -> dict[str, Any]:
        """Return the parameter as a section of a recipe has it, without its name."""
        if isinstance(self.distribution, Choices):
            described: dict[str, Any] = {CHOICES: list(self.distribution.values)}
        else:
            names = (LOW, HIGH, LOG, STEP)
            described = {name: getattr(self.distribution, name) for name in names}
        return described if self.when is None else {**described, WHEN: {self.when[0]: list(self.when[1])}}


def space_of(parameters: Sequence[Parameter]) -> Callable[[Any], dict[str, Any]]:
    """Return the function that draws a space from a trial: `hp_space` of `Trainer.hyperparameter_search`."""

    def draw(trial: Any) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for each in parameters:
            if each.is_tried(drawn):
                drawn |= space_function({each.name: each.distribution})(trial)
        return drawn

    return draw


@frozen
class SearchSection:
    """The contents of the section, checked.

    trials: how many, None for the default. timeout: seconds after which no trial starts. backend: None
    for the default. objectives: the metrics by which a trial is judged, with a direction each; none for the standard
    objective. evaluation: the one that a trial counts with, its best or its last. keep_trials: of how many of the best
    trials the checkpoints are kept, None for all. sampler, pruner: of the backend. options: further ones of it.
    """

    space: Sequence[Parameter]
    trials: int | None = None
    timeout: float | None = None
    backend: str | None = None
    objectives: Sequence[str] = ()
    directions: Sequence[str] = (MINIMIZE,)
    evaluation: str = BEST
    seed: int = 42
    keep_trials: int | None = None
    sampler: RecipePart | None = None
    pruner: RecipePart | None = None
    options: Mapping[str, RecipePart] = field(factory=dict)


def _whole(least: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not int or value < least:
            raise RefusalError(f"it takes a whole number of at least {least}", "give one")
        return value

    return check


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise RefusalError("it takes a number of seconds above 0", "give one")
    return float(value)


def _one_of(*known: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in known:
            raise RefusalError(
                f"it takes {enumeration(known, 'or')}", did_you_mean(str(value), known, "choose one of them")
            )
        return str(value)

    return check


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise RefusalError("it takes a name", "give one")
    return value


def _several(check: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    def several(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            return (check(value),)
        if not value:
            raise RefusalError("the list is empty", "give one value, or several")
        return tuple(map(check, value))

    return several


PLAIN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "trials": ("trials", _whole(1)),
    "timeout": ("timeout", _seconds),
    "backend": ("backend", _name),
    "objective": ("objectives", _several(_name)),
    "direction": ("directions", _several(_one_of(MINIMIZE, MAXIMIZE))),
    "evaluation": ("evaluation", _one_of(BEST, LAST)),
    "seed": ("seed", _whole(0)),
    "keep_trials": ("keep_trials", _whole(1)),
}
"""From a key of the section to its attribute, and what returns its value or raises RefusalError."""

MADE = ("sampler", "pruner")
"""The keys of the section that name an object of the backend's library."""

OPTIONS = "options"
KNOWN = (SPACE, *PLAIN, *MADE, OPTIONS)


def read_search_section(reader: PartReader, arguments: str, known: Sequence[str]) -> SearchSection | None:
    """Read the section; None if there is none. Problems are added to the document's, and what is valid is returned.

    arguments: the key of the arguments. known: the names of the arguments.
    """
    document = reader.document
    section = document.at((SEARCH,))
    if section is None:
        return None
    if not isinstance(section, Mapping):
        _refuse(document, (SEARCH,), section, RefusalError("it takes a mapping", "indent its keys on their own lines"))
        return None
    found: dict[str, Any] = {}
    for name, value in section.items():
        path = (SEARCH, name)
        if name not in KNOWN:
            remedy = did_you_mean(str(name), KNOWN, f"its keys are {', '.join(KNOWN)}")
            _refuse(document, path, value, RefusalError("the section has no such key", remedy))
        elif value is None and name != SPACE:
            continue
        elif name in PLAIN:
            attribute, check = PLAIN[name]
            try:
                found[attribute] = check(value)
            except RefusalError as refusal:
                _refuse(document, path, value, refusal)
        elif name in MADE:
            found[name] = reader.part(path, PartKind.OBJECT)
        elif name == OPTIONS:
            found[name] = _options(reader, path, value)
    found[SPACE] = list(_space(document, section.get(SPACE), arguments, known))
    document.problems += _about_objectives(document, found)
    return SearchSection(**found)


def _options(reader: PartReader, path: KeyPath, value: Any) -> Mapping[str, RecipePart]:
    if not isinstance(value, Mapping):
        reader.refuse(path, value, RefusalError("it takes a mapping", "give options of the backend by name"))
        return {}
    return reader.arguments(path, ())


def _about_objectives(document: Document, found: Mapping[str, Any]) -> Iterator[str]:
    objectives, directions = found.get("objectives", ()), found.get("directions")
    paths = [(SEARCH, "objective"), (SEARCH, "direction")]
    if objectives and directions is None and [each for each in objectives if not each.endswith("loss")]:
        sentence = (
            f"search.direction is missing; whether more or less of {enumeration(objectives)} is better decides the "
            f"search, so add 'direction: {MAXIMIZE}' or 'direction: {MINIMIZE}'"
            f"{', one in a list for each objective' if len(objectives) > 1 else ''}."
        )
        yield document.located(paths[:1], sentence)
    elif directions is not None and len(directions) != max(len(objectives), 1):
        sentence = (
            f"You chose {len(directions)} directions for {max(len(objectives), 1)} objectives; give one for each."
        )
        yield document.located(paths, sentence)


# The space


def _space(document: Document, space: Any, arguments: str, known: Sequence[str]) -> Iterator[Parameter]:
    path: KeyPath = (SEARCH, SPACE)
    if not isinstance(space, Mapping) or not space:
        sentence = (
            "search.space is missing or empty; add what is to be tried, as in "
            "'space: {learning_rate: {low: 1e-5, high: 1e-2, log: true}}'."
        )
        document.problems.append(document.located([path if space is not None else (SEARCH,)], sentence))
        return
    for name, described in space.items():
        here = (*path, name)
        try:
            parameter = _parameter(str(name), described)
            place = place_of(document, str(name), arguments, known)
            if parameter.when is not None:
                _check_condition(parameter, space)
        except RefusalError as refusal:
            _refuse(document, here, described, refusal)
            continue
        if place[0] != arguments:
            _check_part(document, place, parameter, document.locations.get(here) or SourceLocation(SEARCH))
        yield parameter


def place_of(document: Document, name: str, arguments: str, known: Sequence[str]) -> KeyPath:
    """Return the path in the recipe of a name of the space. Raises RefusalError if there is no such place.

    known: the names of the arguments.
    """
    keys = tuple(name.split("."))
    if keys[0] == arguments:
        keys = keys[1:]
    if not all(keys) or not keys:
        raise RefusalError("that is not a name", "write an argument, or keys of the recipe separated by dots")
    if keys[0] in known:
        return (arguments, *keys)
    parts = [str(each) for each in document.values if each not in (arguments, SEARCH)]
    if keys[0] not in parts:
        paths = [each for each in parts if isinstance(document.at((each,)), Mapping)]
        raise RefusalError(
            "there is no such argument, nor such a key in the recipe",
            did_you_mean(name, [*known, *paths], "name an argument, or a key of a part, as in model.width"),
        )
    above: KeyPath = keys[:-1]
    if len(keys) < 2 or not isinstance(document.at(above), Mapping):
        whole = ".".join(map(str, above)) or name
        raise RefusalError(
            f"{whole} is not a mapping in the recipe", f"write {whole} as a mapping with `call`, and name a key of it"
        )
    return keys


def with_values(document: Document, values: Mapping[KeyPath, Any], source: SourceLocation) -> Document:
    """Return a document with these values. Mappings on their paths are copied: an alias in the file shares them."""
    changed = Document(document.values, dict(document.locations))
    for path, value in values.items():
        changed.values = _with(changed.values, path, value)
        changed.locations = {known: old for known, old in changed.locations.items() if known[: len(path)] != path}
        changed.locations[path] = source
    return changed


def _with(inner: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    above = dict(inner) if isinstance(inner, Mapping) else {}
    above[path[0]] = _with(above.get(path[0]), path[1:], value)
    return above


def _check_part(document: Document, place: KeyPath, parameter: Parameter, location: SourceLocation) -> None:
    """Add a problem if a part cannot be called with a value of the space."""
    if place[0] == FINE_TUNE:
        return  # that section checks it, in the recipe of the trial
    trial = with_values(document, {place: parameter.examples()[0]}, location)
    PartReader(trial).part(place[:1], PartKind.EITHER)
    document.problems += [each for each in trial.problems if each not in document.problems and _mentions(each, place)]


def _mentions(sentence: str, place: KeyPath) -> bool:
    return ".".join(map(str, place)) in sentence


def _parameter(name: str, described: Any) -> Parameter:
    """Return what is tried for a name. Raises RefusalError."""
    if isinstance(described, list):
        return Parameter(name, Choices(_choices(described)))
    if not isinstance(described, Mapping):
        raise RefusalError("it takes a list of values, or a mapping with a range", f"write {EXAMPLE}")
    if unknown := [each for each in described if each not in KEYS_OF_A_PARAMETER]:
        otherwise = f"its keys are {enumeration(KEYS_OF_A_PARAMETER)}"
        raise RefusalError(
            f"it has no key {unknown[0]!r:.60}", did_you_mean(str(unknown[0]), KEYS_OF_A_PARAMETER, otherwise)
        )
    when = _condition(described[WHEN]) if described.get(WHEN) is not None else None
    rest = {key: value for key, value in described.items() if key != WHEN and value is not None}
    if CHOICES in rest:
        if len(rest) > 1:
            raise RefusalError("it has both choices and a range", "remove one of them")
        return Parameter(name, Choices(_choices(rest[CHOICES])), when)
    try:
        return Parameter(name, declared({name: rest})[name], when)
    except ConfigurationError as error:
        because = str(error.problems[0]).partition(" wrong: ")[2].rstrip(".")
        raise RefusalError(because, f"write {EXAMPLE}") from None


def _choices(values: Any) -> tuple[Value, ...]:
    if not isinstance(values, list) or not values:
        raise RefusalError("choices are a list of values", "give at least one")
    if len(values) > MOST_CHOICES:
        raise RefusalError(f"there are more than {MOST_CHOICES} choices", "give a range instead")
    for number, value in enumerate(values):
        if isinstance(value, list | Mapping):
            raise RefusalError(
                f"the choice {value!r:.60} is not a single value",
                "give numbers, texts, booleans or null; of a mapping, search its entries by names with dots",
            )
        if any(map(_same(value), values[:number])):
            raise RefusalError(f"it has the choice {value!r:.60} twice", "remove one")
        if isinstance(value, float) and not math.isfinite(value):
            raise RefusalError(f"the choice {value!r} is not finite", "remove it")
    return tuple(values)


def _condition(value: Any) -> tuple[str, tuple[Value, ...]]:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise RefusalError("when takes one name of the space with its values", "write when: {optim: sgd}")
    ((name, values),) = value.items()
    return str(name), _choices(values if isinstance(values, list) else [values])


def _check_condition(parameter: Parameter, space: Mapping[Any, Any]) -> None:
    """Raise RefusalError if the condition of a parameter never holds, or is not known when it is needed."""
    assert parameter.when is not None
    name, values = parameter.when
    earlier = [str(each) for each in space][: [str(each) for each in space].index(parameter.name)]
    if name not in earlier:
        if name in map(str, space):
            raise RefusalError(f"{name} of its condition stands after it", f"put {name} before {parameter.name}")
        raise RefusalError(
            f"there is no {name} of its condition in the space", did_you_mean(name, earlier, "name one that is")
        )
    other = _parameter(name, next(described for each, described in space.items() if str(each) == name))
    if not isinstance(other.distribution, Choices):
        raise RefusalError(f"{name} of its condition has no choices", "conditions are on parameters that list them")
    for value in values:
        if not any(map(_same(value), other.distribution.values)):
            raise RefusalError(
                f"{value!r:.60} is not a choice of {name}",
                f"choose among {enumeration(map(repr, other.distribution.values))}",
            )


def _same(value: Any) -> Callable[[Any], bool]:
    """Return a test for equal values of equal types: 1, 1.0 and true are different choices."""
    return lambda other: type(other) is type(value) and other == value


def _refuse(document: Document, path: KeyPath, value: object, refusal: RefusalError) -> None:
    sentence = problem({".".join(map(str, path)): value}, refusal)
    document.problems.append(document.located([path], sentence))
