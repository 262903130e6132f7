"""Seq2SeqTrainer: generation configs, arguments, refused setups, and saving."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest
import transformers
from torch import nn

from hexloop import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainingArguments
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.sequences.models import PADDING, digits, exact_match, padded, t5
from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import DEFAULTS, arguments

pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")


def config(**says: Any) -> Any:
    made: Any = transformers.GenerationConfig
    return made(decoder_start_token_id=PADDING, pad_token_id=PADDING, **says)


def given(folder: Path, **values: Any) -> Seq2SeqTrainingArguments:
    return Seq2SeqTrainingArguments(output_dir=str(folder), **{**DEFAULTS, "predict_with_generate": True, **values})


def trainer_of(folder: Path, **values: Any) -> Seq2SeqTrainer:
    return Seq2SeqTrainer(t5(), given(folder, **values), padded, digits(16), digits(4), loggers=[])


def test_a_generation_config_is_given_by_path_folder_or_object(tmp_path: Path) -> None:
    """A folder, a file in it and the object itself give the same config, which is a copy."""
    mine = config(max_length=9, num_beams=2)
    mine.save_pretrained(tmp_path / "model")
    for source in (mine, str(tmp_path / "model"), tmp_path / "model", tmp_path / "model" / "generation_config.json"):
        loaded = Seq2SeqTrainer.load_generation_config(source)
        assert (loaded.max_length, loaded.num_beams) == (9, 2)
        assert loaded is not mine
        made = trainer_of(tmp_path, generation_config=source)
        assert made.model.generation_config.max_length == 9


def test_a_contradictory_generation_config_is_refused(tmp_path: Path) -> None:
    """A config that could not be saved is refused before training; another type is refused at once."""
    with pytest.raises(ConfigurationError, match="is inconsistent, and could not be saved: "):
        trainer_of(tmp_path, generation_config=config(do_sample=False, temperature=0.5))
    with pytest.raises(ConfigurationError, match=r"generation_config=3.*a GenerationConfig"):
        given(tmp_path, generation_config=3)


def test_every_model_of_model_init_uses_the_generation_config(tmp_path: Path) -> None:
    """The config applies to the first model, and to the new model of each run."""
    trainer = Seq2SeqTrainer(
        args=given(tmp_path, generation_config=config(max_length=5), max_steps=1),
        model_init=t5,
        data_collator=padded,
        train_dataset=digits(8),
        loggers=[],
    )
    models = [trainer.model]
    for _ in range(2):
        trainer.train()
        models.append(trainer.model)
    assert models[1] is not models[2]
    assert [model.generation_config.max_length for model in models] == [5, 5, 5]


def test_the_generation_config_is_saved_with_the_model(tmp_path: Path) -> None:
    """Checkpoints and saved models contain it, without default values."""
    trainer = trainer_of(
        tmp_path,
        generation_config=config(num_beams=2),
        max_steps=2,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    for folder in ("checkpoint-2", "saved"):
        written = json.loads((tmp_path / folder / "generation_config.json").read_text())
        assert written["num_beams"] == 2
        assert "max_length" not in written


def test_arguments_are_plain_values_for_files_and_copies(tmp_path: Path) -> None:
    """A generation config among them becomes a mapping in files, and stays an object in a copy."""
    mine = config(max_length=9)
    made = given(tmp_path, generation_config=mine)
    assert json.loads(made.to_json_string())["generation_config"]["max_length"] == 9
    assert dataclasses.replace(made, generation_num_beams=3).generation_config is mine
    assert given(tmp_path).to_dict()["generation_config"] is None


@dataclasses.dataclass
class Dataclass(Seq2SeqTrainingArguments):
    temperature: float = 0.5


@attrs.define(slots=False, kw_only=True)
class Attrs(Seq2SeqTrainingArguments):
    temperature: float = 0.5


@pytest.mark.parametrize("kind", [Dataclass, Attrs])
def test_arguments_can_be_subclassed(kind: Any, tmp_path: Path) -> None:
    """Subclasses with either decorator have all arguments, and their own."""
    made = kind(output_dir=str(tmp_path), generation_max_length=7, temperature=2.0, **DEFAULTS)
    assert (made.generation_max_length, made.temperature, made.predict_with_generate) == (7, 2.0, False)
    assert Seq2SeqTrainer(t5(), made, loggers=[]).args is made
    with pytest.raises(ConfigurationError, match="generation_num_beams=0"):
        kind(output_dir=str(tmp_path), generation_num_beams=0)


def test_transformers_arguments_are_accepted(tmp_path: Path) -> None:
    """Transformers' arguments, including a generation config, become hexloop's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers itself
        theirs = transformers.Seq2SeqTrainingArguments(
            output_dir=str(tmp_path),
            predict_with_generate=True,
            generation_max_length=6,
            generation_config=config(max_length=9),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
    trainer = Seq2SeqTrainer(t5(), theirs, padded, eval_dataset=digits(4), loggers=[])  # type: ignore[arg-type]
    assert isinstance(trainer.args, Seq2SeqTrainingArguments)
    assert (trainer.args.generation_max_length, trainer.model.generation_config.max_length) == (6, 9)


def test_arguments_of_another_class_are_refused(tmp_path: Path) -> None:
    """TrainingArguments have no generation options; without arguments, the right class is created."""
    with pytest.raises(ConfigurationError, match="args is a TrainingArguments; pass Seq2SeqTrainingArguments"):
        Seq2SeqTrainer(t5(), arguments(tmp_path), loggers=[])
    assert isinstance(Seq2SeqTrainer(t5(), loggers=[]).args, Seq2SeqTrainingArguments)
    assert type(TrainingArguments(str(tmp_path))) is TrainingArguments


def test_a_model_that_cannot_generate_is_refused(tmp_path: Path) -> None:
    """The message names the model; without predict_with_generate it can be trained."""
    with pytest.raises(
        ConfigurationError, match="predict_with_generate=True needs a model with a method generate, which Net"
    ):
        Seq2SeqTrainer(net(), given(tmp_path), loggers=[])
    Seq2SeqTrainer(net(), given(tmp_path, predict_with_generate=False), loggers=[])


def test_sortish_sampler_groups_by_length(tmp_path: Path) -> None:
    """sortish_sampler groups by length, with a warning; another explicit order takes precedence."""
    with pytest.warns(FutureWarning, match="train_sampling_strategy='group_by_length'"):
        made = given(tmp_path, sortish_sampler=True)
    assert made.train_sampling_strategy == "group_by_length"
    assert given(tmp_path, sortish_sampler=True, train_sampling_strategy="sequential").sortish_sampler


class Reverser(nn.Module):
    """A user's model with a `generate` method that takes its keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight)[0])

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return {"loss": self.weight.sum(), "logits": input_ids.float()}

    def generate(self, input_ids: Any, max_length: int) -> Any:
        return input_ids.flip(1)[:, :max_length]


class Pads:
    pad_token_id = PADDING


def test_a_user_s_model_can_generate(tmp_path: Path) -> None:
    """Without a config or a generation config, its output is padded all the same."""
    trainer = Seq2SeqTrainer(
        Reverser(),
        given(tmp_path, generation_max_length=3),
        processing_class=Pads(),
        eval_dataset=[{"input_ids": [3, 4, 5], "labels": [5, 4, 3]}],
        compute_metrics=lambda found: {"first": float(found.predictions[0][0])},
        loggers=[],
    )
    assert trainer.evaluate()["eval_first"] == 5.0
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (1, 20)


def test_generation_keywords_apply_to_every_dataset(tmp_path: Path) -> None:
    """An overridden `evaluate`, which is called for each dataset, does not have to know the keywords of `generate`."""

    class Own(Seq2SeqTrainer):
        def evaluate(self, *args: Any, **keywords: Any) -> dict[str, float]:
            return super().evaluate(*args, **keywords)

    row = {"input_ids": [3, 4, 5], "labels": [5, 4, 3]}
    trainer = Own(
        Reverser(),
        given(tmp_path, generation_max_length=3),
        processing_class=Pads(),
        eval_dataset={"a": [row], "b": [row]},
        compute_metrics=lambda found: {"length": float((found.predictions != PADDING).sum())},
        loggers=[],
    )
    metrics = trainer.evaluate(max_length=2)

    assert (metrics["eval_a_length"], metrics["eval_b_length"]) == (2.0, 2.0)
    assert trainer.evaluate()["eval_b_length"] == 3.0


def test_sampling_in_an_evaluation_leaves_training_untouched(tmp_path: Path) -> None:
    """A run that sometimes generates with sampling has the weights of one that does not."""
    sampled = trainer_of(
        tmp_path / "sampled",
        generation_config=config(do_sample=True, max_length=6),
        eval_strategy="steps",
        eval_steps=1,
        max_steps=3,
    )
    sampled.compute_metrics = exact_match
    plain = trainer_of(tmp_path / "plain", max_steps=3)
    losses = []
    for trainer in (sampled, plain):
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]


def test_a_padding_token_is_required(tmp_path: Path) -> None:
    """An error is raised if padding is needed and neither the tokenizer nor the config defines a token."""
    trainer = Seq2SeqTrainer(Reverser(), given(tmp_path, generation_max_length=3), loggers=[])
    with pytest.raises(ConfigurationError, match="set pad_token_id in the model's config, or pass a tokenizer"):
        trainer.predict([{"input_ids": [3, 4, 5]}])
