"""Arguments of sequence-to-sequence training."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from hexloop import Seq2SeqTrainer, Seq2SeqTrainingArguments
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.arguments.bench import Bench, shows
from tests.end_to_end.sequences.models import digits, padded, t5
from tests.end_to_end.small.trainers import DEFAULTS


def _trainer(bench: Bench, **given: Any) -> Seq2SeqTrainer:
    arguments = Seq2SeqTrainingArguments(str(bench.new_folder()), **{**DEFAULTS, **given})
    return Seq2SeqTrainer(
        model=t5(), args=arguments, data_collator=padded, train_dataset=digits(8), eval_dataset=digits(4), loggers=[]
    )


def _predicted(bench: Bench, **given: Any) -> Any:
    return _trainer(bench, **given).predict(digits(4)).predictions


@shows("predict_with_generate", "generation_max_length")
def _(bench: Bench) -> None:
    assert _predicted(bench, predict_with_generate=True).dtype.kind == "i"
    assert _predicted(bench)[0].dtype.kind == "f"
    assert _asked_of_generate(bench, generation_max_length=5)["max_length"] == 5
    with pytest.raises(ConfigurationError, match="use Seq2SeqTrainingArguments"):
        bench.arguments(predict_with_generate=True)


def _asked_of_generate(bench: Bench, **given: Any) -> dict[str, Any]:
    made = _trainer(bench, predict_with_generate=True, **given)
    asked: list[dict[str, Any]] = []
    generate = made.model.generate

    def noting(*values: Any, **named: Any) -> Any:
        asked.append({**made.model.generation_config.to_dict(), **named})
        return generate(*values, **named)

    bench.patch.setattr(made.model, "generate", noting)
    made.predict(digits(4))
    return asked[0]


@shows("generation_num_beams")
def _(bench: Bench) -> None:
    assert _asked_of_generate(bench, generation_num_beams=3, generation_max_length=5)["num_beams"] == 3


@shows("generation_config")
def _(bench: Bench) -> None:
    config: Any = transformers.GenerationConfig
    chosen = config(decoder_start_token_id=0, max_length=7, num_beams=2)
    assert _asked_of_generate(bench, generation_config=chosen)["num_beams"] == 2
    assert _predicted(bench, generation_config=chosen, predict_with_generate=True).shape[1] <= 7


@shows("sortish_sampler")
def _(bench: Bench) -> None:
    with pytest.warns(FutureWarning, match="sortish_sampler"):
        made = _trainer(bench, sortish_sampler=True)
    assert made.args.train_sampling_strategy == "group_by_length"


@shows("generation_samples")
def _(bench: Bench) -> None:
    for given in (0, 2):
        made = _trainer(bench, generation_samples=given, predict_with_generate=True)
        assert (made._wanted_samples() is not None) is False, "there is no tokenizer"
        made.processing_class = type("Decoder", (), {"batch_decode": lambda self, rows, **_: map(str, rows)})()
        assert (made._wanted_samples() is not None) is (given > 0)
