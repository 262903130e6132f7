"""`create_model_card` writes a card that the Hub's own library reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard

from hexloop import Trainer
from hexloop.testing import RecordingLogger
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer

EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2, "num_train_epochs": 2}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": 0.75}


def card_of(trainer: Trainer, folder: Path, **facts: Any) -> Any:
    trainer.create_model_card(**facts)
    return ModelCard.load(folder / "README.md")


def test_a_card_of_a_plain_module_states_the_run(tmp_path: Path) -> None:
    """Metadata, hyperparameters, and a row for each evaluation."""
    folder = tmp_path / "net"
    trainer = small_trainer(folder, parts={"eval_dataset": rows(6), "compute_metrics": accuracy}, **EVALUATED)
    trainer.train()
    card = card_of(
        trainer, folder, language="en", license="mit", tags="tiny", tasks="text-classification", dataset_tags="glue",
        dataset="GLUE", dataset_args="sst2", model_name="Net",
    )  # fmt: skip

    data = card.data
    assert (data.language, data.license, data.datasets, data.metrics) == (["en"], "mit", ["glue"], ["accuracy"])
    assert data.tags == ["tiny", "generated_from_trainer", "hexloop"]
    assert [(each.task_type, each.metric_type, each.metric_value) for each in data.eval_results or ()] == [
        ("text-classification", "accuracy", 0.75)
    ]
    assert "# Net" in card.text
    assert "trained from scratch on the GLUE dataset" in card.text
    assert "- learning_rate: 0.01" in card.text
    table = [line for line in card.text.splitlines() if line.startswith("| ")]
    assert table[0] == "| Training Loss | Epoch | Step | Validation Loss | Accuracy |"
    assert [line.split(" | ")[2] for line in table[2:]] == ["2", "4", "6", "8"]


def test_a_card_states_how_the_run_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command without folders, and a digest that is another one for each order of the data."""
    command = ["/usr/bin/python3", "/home/me/train.py", "--data=/home/me/data", "--hub_token", "hf_0123456789abcdef"]
    monkeypatch.setattr(sys, "orig_argv", command)

    def facts_of(name: str, data: Any = None, **given: Any) -> list[str]:
        trainer = small_trainer(tmp_path / name, parts={"train_dataset": data or rows(16)}, **given)
        text = card_of(trainer, tmp_path / name).text
        return [line for line in text.split("### How to repeat the run")[1].split("###")[0].splitlines() if line]

    first, other = facts_of("first"), facts_of("other", data_seed=7)
    assert first[0] == "- command: `python3 train.py --data=data --hub_token '***'`"
    assert "- randomness: seed 42, 4 samples a batch" in first
    assert "- randomness: seed 42, data seed 7, 4 samples a batch" in other
    order, other_order = (next(each for each in lines if "order of the" in each) for lines in (first, other))
    assert order.startswith("- order of the first epoch: `blake2b:")
    assert order.endswith("(16 samples)")
    assert order != other_order
    assert order in facts_of("again", learning_rate=0.5)
    assert not any("blake2b" in line for line in facts_of("theirs", reproduce="transformers"))


def test_a_card_of_code_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are those of the imported modules, so hexloop on PYTHONPATH, without a package's metadata, works."""
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not hasattr(each, "find_distributions")])
    card = card_of(small_trainer(tmp_path), tmp_path)

    assert f"- PyTorch {torch.__version__}" in card.text
    assert "- hexloop " in card.text


def test_a_second_card_keeps_the_tags_of_the_first(tmp_path: Path) -> None:
    """An earlier README.md is replaced, and its tags stay."""
    trainer = small_trainer(tmp_path)
    card_of(trainer, tmp_path, tags=["first"])
    card = card_of(trainer, tmp_path, tags=["second"])

    assert set(card.data.tags or ()) == {"first", "second", "generated_from_trainer", "hexloop"}
    assert "No evaluation was made." in card.text


class PublicLogger(RecordingLogger):
    """A logger that shows runs on a page."""

    page = "https://example.com/run"
    card_tags = ("public", f"public:{page}")


def test_a_card_links_the_page_of_a_tracker(tmp_path: Path) -> None:
    """With its tags; loggers without a page are not mentioned."""
    trainer = small_trainer(tmp_path, parts={"loggers": [PublicLogger(), RecordingLogger()]})
    card = card_of(trainer, tmp_path)

    assert {"public", "public:https://example.com/run"} <= {*card.data.tags}
    assert "](https://example.com/run)" in card.text
    assert "recording" not in card.text


def test_a_card_of_a_transformers_model_names_its_base(tmp_path: Path) -> None:
    """A model of the Hub is the base; one that was made from a configuration or a folder is trained from scratch."""
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = transformers.BertForSequenceClassification(config)
    trainer = small_trainer(tmp_path / "bert-tiny", parts={"model": model})
    scratch = card_of(trainer, tmp_path / "bert-tiny")
    model.config._name_or_path = "someone/bert"
    tuned = card_of(trainer, tmp_path / "bert-tiny")

    assert scratch.data.library_name == "transformers"
    assert "trained from scratch" in scratch.text
    assert "# bert-tiny" in scratch.text
    assert tuned.data.base_model == "someone/bert"
    assert "[someone/bert](https://huggingface.co/someone/bert)" in tuned.text
