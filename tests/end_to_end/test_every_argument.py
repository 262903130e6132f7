"""The visible effect of every argument of every release of transformers, or its refusal."""

from __future__ import annotations

import csv
import logging
from importlib import import_module
from pathlib import Path

import attrs
import pytest

from hexloop import Seq2SeqTrainingArguments

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
    """Return the arguments in the table of transformers' releases, in order."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [row["name"] for row in csv.DictReader(lines, delimiter="\t")]


def arguments_of(observe: object) -> str:
    """Return the arguments whose effect is tested."""
    return " ".join(name for name, each in EFFECTS.items() if each is observe)


@pytest.mark.parametrize("observe", dict.fromkeys(EFFECTS.values()), ids=arguments_of)
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_an_argument_has_its_effect(
    observe: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It changes the run, is refused, or is reported as without effect."""
    monkeypatch.setattr(logging.getLogger("hexloop"), "level", logging.NOTSET)
    monkeypatch.chdir(tmp_path)
    assert callable(observe)
    observe(Bench(tmp_path, monkeypatch, caplog))


def test_every_argument_of_the_table_is_tested() -> None:
    """Every argument of the table is tested once, and others of hexloop's own only."""
    own = {each.name for each in attrs.fields(Seq2SeqTrainingArguments)}
    assert set(names()) <= set(EFFECTS)
    assert set(EFFECTS) - set(names()) <= own
    assert len(names()) == len(set(names())) == 153
