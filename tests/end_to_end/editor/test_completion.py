"""What editors and notebooks show while a user writes the arguments of a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hexloop import Seq2SeqTrainingArguments, SFTConfig, Trainer, TrainingArguments
from tests.language_server import LanguageServer, language_server

KINDS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
TYPES = {"learning_rate": {"float"}, "save_strategy": {"SaveStrategy", "SaveText"}, "seed": {"int"}}

PROGRAM = (
    """
from torch import nn
from hexloop import Seq2SeqTrainingArguments, SFTConfig, Trainer, TrainingArguments
TrainingArguments("out", learn)
TrainingArguments("out", save_strategy="")
trainer = Trainer(nn.Linear(1, 1), )
trainer.model
""".strip().splitlines()
    + [f'{kind}("out", {name}=)' for kind in KINDS for name in TYPES]
)


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    with language_server(tmp_path_factory.mktemp("program")) as server:
        server.open("\n".join(PROGRAM))
        yield server


def place(text: str, offset: int = 0) -> tuple[int, int]:
    """The line that begins with `text`, and the column after it."""
    line = next(number for number, each in enumerate(PROGRAM) if each.startswith(text))
    return line, len(text) + offset


def completions(editor: LanguageServer, text: str) -> list[str]:
    found = editor.at("completion", *place(text)) or []
    return [each["label"] for each in (found["items"] if isinstance(found, dict) else found)]


def test_names_of_arguments_are_completed(editor: LanguageServer) -> None:
    """After their first letters."""
    assert "learning_rate=" in completions(editor, 'TrainingArguments("out", learn')


def test_choices_are_completed(editor: LanguageServer) -> None:
    """Within the quotes of an argument that takes one of a few texts."""
    offered = completions(editor, 'TrainingArguments("out", save_strategy="')
    assert {each.strip("\"'") for each in offered} >= {"no", "steps", "epoch", "best"}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", [TrainingArguments, Seq2SeqTrainingArguments, SFTConfig])
def test_an_argument_is_shown_with_type_default_and_help(kind: type[Any], name: str, editor: LanguageServer) -> None:
    """In the signature that the editor shows while the value is written."""
    (shown,) = editor.at("signatureHelp", *place(f'{kind.__name__}("out", {name}='))["signatures"]
    (written,) = re.findall(rf"\b{name}: (.+?)(?:, \w+:|\)$)", shown["label"])
    kept, _, default = written.rpartition(" = ")
    assert set(kept.split(" | ")) == {"learning_rate": {"float"}, "seed": {"int"}}.get(
        name, {"SaveStrategy", "SaveText"}
    )
    assert eval(default) == kind.__dataclass_fields__[name].default
    helps = [each["documentation"]["value"] for each in shown["parameters"] if each.get("documentation")]
    assert [each.partition(": ")[::2] for each in helps if each] == [
        (name, kind.__dataclass_fields__[name].metadata["help"])
    ]


def test_the_model_is_shown_with_the_type_of_the_user_s(editor: LanguageServer) -> None:
    """On the attribute, and in the signature of the constructor."""
    assert "model: Linear" in editor.at("hover", *place("trainer.mo"))["contents"]["value"]
    (shown,) = editor.at("signatureHelp", *place("trainer = Trainer(nn.Linear(1, 1), "))["signatures"]
    assert "train_dataset: Any = None" in shown["label"]


def test_notebooks_complete_arguments() -> None:
    """jedi, which IPython and Jupyter use, knows names, types, defaults and help; `?` shows the docstring."""
    jedi = pytest.importorskip("jedi")
    completed = jedi.Interpreter('TrainingArguments("out", learn', [{"TrainingArguments": TrainingArguments}])
    (found,) = [each for each in completed.complete() if each.name == "learning_rate="]
    assert "learning_rate: float" in found.description
    assert float(found.description.partition("=")[2]) == 5e-5
    assert "learning_rate: peak learning rate" in (inspect.getdoc(TrainingArguments) or "")
    assert inspect.signature(Trainer).parameters["model"].default is None
