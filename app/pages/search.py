"""How results depend on arguments, for three or more runs: parallel coordinates, a heat map, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from markupsafe import Markup

from hexloop.app.pages.history import number_of
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.templates import clean, section
from hexloop.domain.evaluation import is_reading
from hexloop.domain.redaction import redacted

FEWEST_RUNS = 3
"""How many runs with different arguments are needed."""

MOST_ARGUMENTS = 8
MOST_RESULTS = 6
"""How many axes of each kind there are; those with the most values first."""

MOST_CATEGORIES = 30
"""How many values an axis of words has. A heat map of more has no room for its labels."""

LONGEST_WORD = 40
"""Characters of a value on an axis."""

LOGARITHMIC_FROM = 20.0
"""The ratio of the largest to the smallest value from which an axis is logarithmic."""

NOT_COMPARED = frozenset({"output_dir", "run_name", "logging_dir", "hub_model_id", "resume_from_checkpoint"})
"""Arguments that name a run rather than decide its result."""

IDENTIFIERS = ("parallel", "heat-map")
"""The places of the two charts."""

Value = float | str | None


@frozen
class Axis:
    """An argument or a result. values: one for each run; numbers if `is_number`, else words.

    logarithmic: whether equal ratios are to have equal lengths; None where that follows from the values.
    """

    name: str
    values: Sequence[Value]
    is_number: bool
    logarithmic: bool | None = None

    @property
    def categories(self) -> list[str]:
        """The words on the axis, in order."""
        return sorted({str(each) for each in self.values if each is not None})

    @property
    def different(self) -> int:
        """How many different values there are."""
        return len(set(self.values))

    @property
    def is_logarithmic(self) -> bool:
        """Whether equal ratios rather than equal differences have equal lengths."""
        numbers = [each for each in self.values if isinstance(each, float)]
        if not self.is_number or min(numbers) <= 0:
            return False
        wide = max(numbers) / min(numbers) >= LOGARITHMIC_FROM
        return wide if self.logarithmic is None else self.logarithmic


@frozen
class Search:
    """Runs with different arguments. arguments, results: axes with different values.

    noun: what has these: a run, or a trial. states: the state of each trial; those that are not complete are marked.
    """

    arguments: Sequence[Axis]
    results: Sequence[Axis]
    noun: str = "run"
    states: Sequence[str] = ()


def search_of(records: Sequence[RunRecord]) -> Search | None:
    """Return what differs between runs; None if there are too few of them, or if arguments or results are equal."""
    if len(records) < FEWEST_RUNS:
        return None
    settings = [redacted(record.history.settings) for record in records]
    names = sorted({str(name) for each in settings for name in each} - NOT_COMPARED)
    arguments = _different([axis_of(name, [each.get(name) for each in settings]) for name in names])
    results = [_last_values(record) for record in records]
    wanted = dict.fromkeys(name for each in results for name in each)
    measured = _different([axis_of(name, [each.get(name) for each in results]) for name in wanted])
    if not arguments or not measured:
        return None
    return Search(arguments[:MOST_ARGUMENTS], measured[:MOST_RESULTS])


def search_section(search: Search | None, labels: Sequence[str]) -> Markup:
    """Return the section with the charts, their controls, and the table; nothing without a search."""
    if search is None:
        return Markup()
    arguments, results = ([each.name for each in axes] for axes in (search.arguments, search.results))
    colour = _choice("colour-of", "colour", results, 0)
    noun = search.noun
    figures = [_figure(IDENTIFIERS[0], f"Each line is a {noun}; its colour is a result", [colour], labels, noun)]
    if len(arguments) > 1:
        choices = [_choice("heat-x", "across", arguments, 0), _choice("heat-y", "down", arguments, 1)]
        choices.append(_choice("heat-value", "mean of", results, 0))
        title = "A result for two arguments" if noun == "run" else "A result for two parameters"
        figures.append(_figure(IDENTIFIERS[1], title, choices, labels, noun))
    axes = [*search.arguments, *search.results]
    rows = [(label, *(_shown(axis.values[run]) for axis in axes)) for run, label in enumerate(labels)]
    numbers = [number for number, axis in enumerate(axes, 1) if axis.is_number]
    return section("search", figures=figures, head=(noun, *(axis.name for axis in axes)), rows=rows, numbers=numbers)


def search_data(search: Search | None) -> dict[str, Any] | None:
    """Return what the script needs to draw the charts."""
    if search is None:
        return None
    axes = {"arguments": list(map(axis_data, search.arguments)), "results": list(map(axis_data, search.results))}
    return {**axes, "noun": search.noun, "states": list(search.states)}


def axis_data(axis: Axis) -> dict[str, Any]:
    """Return what a script needs of an axis."""
    kind = "category" if not axis.is_number else "log" if axis.is_logarithmic else "value"
    words = [] if axis.is_number else axis.categories
    return {"name": clean(axis.name), "type": kind, "values": list(axis.values), "categories": words}


def _figure(identifier: str, title: str, choices: Sequence[Any], labels: Sequence[str], noun: str) -> dict[str, Any]:
    words = f"{title}, for {len(labels)} {noun}s. The table below has the same in figures."
    return {"identifier": identifier, "title": title, "choices": choices, "words": words}


def _choice(identifier: str, words: str, names: Sequence[str], chosen: int) -> dict[str, Any]:
    return {"identifier": identifier, "words": words, "names": names, "chosen": chosen}


def _different(axes: Sequence[Axis | None]) -> list[Axis]:
    found = [each for each in axes if each is not None and each.different > 1]
    return sorted(found, key=lambda axis: -axis.different)


def axis_of(name: str, values: Sequence[Any]) -> Axis | None:
    """Return the axis of a value for each run, None for a run without it; None for an axis with too many words."""
    numbers = [None if isinstance(each, bool) else number_of(each) for each in values]
    finite = [each if each is not None and abs(each) < float("inf") else None for each in numbers]
    if all(each is not None for each in finite):
        return Axis(name, finite, True)
    if any(each is not None for each in finite) and all(
        each is None or finite[number] is not None for number, each in enumerate(values)
    ):
        return Axis(name, finite, True)
    words = [None if each is None else _word(each) for each in values]
    return Axis(name, words, False) if len(set(words)) <= MOST_CATEGORIES else None


def _word(value: Any) -> str:
    text = clean(str(value))
    return text if len(text) <= LONGEST_WORD else f"{text[:LONGEST_WORD]}..."


def _last_values(record: RunRecord) -> Mapping[str, float]:
    """Return the results of a run: its last losses and metrics of evaluation, and its speed."""
    found = {}
    for name, series in record.history.series.items():
        is_result = name in ("loss", "train_loss") or name.startswith(("eval_", "test_"))
        if is_result and len(series) and not series.ends_in_gap and not is_reading(name):
            found[f"last {name}"] = series.values[-1]
            if len(series) > 1 and name.endswith("loss"):
                found[f"lowest {name}"] = min(series.values)
    return dict(sorted(found.items(), key=lambda item: "eval_" not in item[0]))


def _shown(value: Value) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else value
