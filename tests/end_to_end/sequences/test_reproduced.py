"""With `reproduce="transformers"`, Seq2SeqTrainer evaluates and predicts as transformers' does, to the last bit."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch.nn.functional import cross_entropy, pad

import hexloop
from tests.end_to_end.parity.scripts.comparing import assert_same_arrays
from tests.end_to_end.sequences.models import MODELS, digits, padded, padded_with_decoder_inputs
from tests.end_to_end.sequences.test_parity import trainer_of, untimed

pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")

LIBRARIES = (hexloop, transformers)
SHORT_LAST_BATCH = 10


def made(library: Any, folder: Path, arguments: dict[str, Any], model: str = "T5", **parts: Any) -> Any:
    own = {"reproduce": "transformers", "loss_weighting": "reference"} if library is hexloop else {}
    parts = {"eval_dataset": digits(SHORT_LAST_BATCH), **parts}
    return trainer_of(library, folder, MODELS[model](), {**arguments, **own}, **parts)


def double(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return 2 * cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "no length": ("T5", {}, {}),
    "a length": ("BART", {"generation_max_length": 8}, {}),
    "smoothed labels": ("BART", {"label_smoothing_factor": 0.1}, {"data_collator": padded_with_decoder_inputs}),
    "a loss function": ("T5", {}, {"compute_loss_func": double, "data_collator": padded_with_decoder_inputs}),
}


@pytest.mark.parametrize(
    "name", [each if each == "no length" else pytest.param(each, marks=pytest.mark.matrix) for each in CASES]
)
def test_evaluations_are_transformers(name: str, tmp_path: Path) -> None:
    """Losses, metrics and tokens, also of a short last batch and of later calls, and the model's generation config."""
    model, arguments, parts = CASES[name]
    results, configs = [], []
    for library in LIBRARIES:
        trainer = made(library, tmp_path, arguments, model, **deepcopy(parts))
        metrics = [untimed(trainer.evaluate()) for _ in range(2)]
        predicted = trainer.predict(digits(7))
        results.append((metrics, untimed(predicted.metrics), predicted.predictions, predicted.label_ids))
        configs.append(trainer.model.generation_config.to_dict())
    ours, theirs = results
    assert ours[:2] == theirs[:2]
    assert "eval_loss" in ours[0][0]
    for one, other in zip(ours[2:], theirs[2:], strict=True):
        assert_same_arrays(one, other)
    assert configs[0] == configs[1]


class OwnEvaluation:
    """Evaluates by the loop alone, as scripts do that compute metrics from texts."""

    def evaluate(self: Any, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        loader = self.get_eval_dataloader(self.eval_dataset)
        output = self.evaluation_loop(loader, "Evaluation", metric_key_prefix=metric_key_prefix)
        self.log({**output.metrics, "rows": len(output.predictions)})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)
        return output.metrics


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_evaluations_in_training_are_transformers(own: bool, tmp_path: Path) -> None:
    """All logs are equal; also if `evaluate` is overridden, in which the loss of a short batch has its own weight."""
    arguments = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "learning_rate": 0.01}
    histories = []
    for library in LIBRARIES:
        trainer = made(library, tmp_path, arguments, train_dataset=digits(32), data_collator=padded)
        if own:
            trainer.__class__ = type("Own", (OwnEvaluation, type(trainer)), {})
        trainer.train()
        histories.append([untimed(entry) for entry in trainer.state.log_history])
        for entry in histories[-1]:
            entry.pop("total_flos", None)
    assert histories[0] == histories[1]
    assert sum("eval_loss" in entry for entry in histories[0]) == 3


def test_a_resumed_run_generates_as_many_tokens(tmp_path: Path) -> None:
    """Evaluations after a resume are those of the run that was not interrupted."""
    arguments = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    shapes: list[Any] = []

    def lengths(evaluated: Any) -> dict[str, float]:
        shapes.append(evaluated.predictions.shape)
        return {"length": float((evaluated.predictions != -100).sum())}

    def run(folder: str, **more: Any) -> Any:
        trainer = made(
            hexloop, tmp_path / folder, {**arguments, "max_steps": 4}, train_dataset=digits(32), compute_metrics=lengths
        )
        trainer.train(**more)
        return [entry["eval_length"] for entry in trainer.state.log_history if "eval_length" in entry]

    whole = run("whole")
    assert run("resumed", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2")) == whole
    assert shapes == [(SHORT_LAST_BATCH, 21), (SHORT_LAST_BATCH, 20), (SHORT_LAST_BATCH, 20)]


def test_generation_uses_prepared_inputs(tmp_path: Path) -> None:
    """An overridden `_prepare_inputs` applies to generation, too."""
    shapes = []
    for library in LIBRARIES:
        trainer = trainer_of(library, tmp_path, MODELS["T5"](), {"generation_max_length": 5}, compute_metrics=None)

        class Renaming(type(trainer)):  # type: ignore[misc]  # the class is known at run time only
            def _prepare_inputs(self, inputs: Any) -> Any:
                inputs = super()._prepare_inputs(inputs)
                return {"input_ids" if name == "tokens" else name: value for name, value in inputs.items()}

        def collate(rows: Any) -> Any:
            batch = padded(rows)
            return {"tokens": batch.pop("input_ids"), **batch}

        trainer.__class__, trainer.data_collator = Renaming, collate
        shapes.append(trainer.predict(digits(4)).predictions.shape)
    assert shapes[0] == shapes[1]


def test_an_overridden_padding_is_called(tmp_path: Path) -> None:
    """Sequences that are shorter than the config's length are padded by the user's method."""
    padding = []
    for library in LIBRARIES:
        trainer = trainer_of(library, tmp_path, MODELS["T5"](), {"generation_max_length": 5}, compute_metrics=None)

        class Padding(type(trainer)):  # type: ignore[misc]  # the class is known at run time only
            def _pad_tensors_to_max_len(self, tensor: Any, max_length: int) -> Any:
                return pad(tensor, (0, max_length - tensor.shape[-1]), value=7)

        trainer.__class__ = Padding
        predicted = trainer.predict(digits(4))
        padding.append((predicted.predictions[:, -1].tolist(), predicted.label_ids[:, -1].tolist()))
    assert padding[0] == padding[1] == ([7] * 4, [7] * 4)
