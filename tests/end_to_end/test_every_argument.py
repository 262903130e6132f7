"""Every argument of every release of transformers: what a user sees of it, or the way out."""

from __future__ import annotations

import csv
import logging
from importlib import import_module
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.end_to_end.arguments")

from tests.end_to_end.arguments.bench import EFFECTS, Bench  # noqa: E402

for subject in (
    "lengths",
    "optimization",
    "logs",
    "evaluation",
    "saving",
    "data",
    "compute",
    "publishing",
    "earlier",
    "sequences",
):
    import_module(f"tests.end_to_end.arguments.{subject}")

TABLE = Path(__file__).parents[1] / "reference" / "arguments.tsv"


def names() -> list[str]:
    """The arguments of the table of transformers' releases, in its order."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [row["name"] for row in csv.DictReader(lines, delimiter="\t")]


def arguments_of(observe: object) -> str:
    """The arguments whose effect is observed."""
    return " ".join(name for name, each in EFFECTS.items() if each is observe)


@pytest.mark.parametrize("observe", dict.fromkeys(EFFECTS.values()), ids=arguments_of)
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_an_argument_has_its_effect(
    observe: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It changes what a run does, or is refused, or says that it changes nothing."""
    monkeypatch.setattr(logging.getLogger("hexloop"), "level", logging.NOTSET)
    monkeypatch.chdir(tmp_path)
    assert callable(observe)
    observe(Bench(tmp_path, monkeypatch, caplog))


def test_every_argument_of_the_table_is_observed() -> None:
    """The observations are those of the arguments of the table, each once, and of no others."""
    assert sorted(EFFECTS) == sorted(set(names()))
    assert len(names()) == len(set(names())) == 153
