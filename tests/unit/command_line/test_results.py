"""`hexloop evaluate` and `predict`: the checkpoint that is used, the output and the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexloop.app.command_line.evaluating import to_jsonl, to_npz
from hexloop.domain.errors import DataError
from tests.unit.command_line.commands import Commands

RECIPE = """\
model: {call: project.Line, slope: 0.5}
train_dataset: {call: project.points, count: 8, noise: 0.0}
eval_dataset: {call: project.points, count: 4, noise: 0.0}
compute_metrics: project.error
arguments:
  output_dir: out
  max_steps: 4
  learning_rate: 0.1
  eval_strategy: steps
  eval_steps: 2
  save_steps: 2
  disable_tqdm: true
  use_cpu: true
"""


@pytest.fixture
def trained(commands: Commands) -> Commands:
    """A folder with a trained recipe and checkpoints at steps 2 and 4."""
    assert commands("train", commands.write("line.yaml", RECIPE)).code == 0
    return commands


def error_of(slope: float) -> float:
    """Return the error of a line through the origin on held-out points, whose slope is 2."""
    return abs(slope - 2.0) * 2.5


def slope_of(step: int) -> float:
    """Return the slope saved in a checkpoint."""
    from safetensors.numpy import load_file

    return float(load_file(f"out/checkpoint-{step}/model.safetensors")["slope"][0])


def test_metrics_of_the_newest_checkpoint_are_the_only_output(trained: Commands) -> None:
    """Standard output contains only JSON, and the file has the same text."""
    outcome = trained("evaluate", "line.yaml")
    assert outcome.code == 0
    metrics = json.loads(outcome.output)
    assert metrics["checkpoint"] == str(Path("out/checkpoint-4").resolve())
    assert metrics["eval_error"] == pytest.approx(error_of(slope_of(4)), rel=1e-5)
    assert Path("out/eval_results.json").read_text() == outcome.output


def test_best_checkpoint_is_used_with_load_best_model_at_end(trained: Commands) -> None:
    """With load_best_model_at_end the best checkpoint is used, as in the run."""
    options = ["--load_best_model_at_end", "--greater_is_better", "true", "--output_dir", "best"]
    assert trained("train", "line.yaml", *options).code == 0
    outcome = trained("evaluate", "line.yaml", *options, "--output", "here/metrics.json")
    assert json.loads(outcome.output)["checkpoint"] == str(Path("best/checkpoint-2").resolve())
    assert json.loads(Path("here/metrics.json").read_text()) == json.loads(outcome.output)


def test_best_checkpoint_in_another_folder_is_an_error(trained: Commands) -> None:
    """A best checkpoint in the folder of an earlier run is not confused with another run's."""
    best = ["--load_best_model_at_end", "--greater_is_better", "true"]
    moved = [*best, "--output_dir", "moved"]
    assert trained("train", "line.yaml", *best, "--output_dir", "best").code == 0
    assert trained("train", "line.yaml", *moved, "--max_steps", "2", "--learning_rate", "0.3").code == 0
    assert trained("train", "line.yaml", *moved, "--resume", "best/checkpoint-4", "--max_steps", "6").code == 0
    outcome = trained("evaluate", "line.yaml", *moved)
    assert outcome.code == 1
    assert "the run's best checkpoint, checkpoint-2, but it is not in" in outcome.errors
    outcome = trained("evaluate", "line.yaml", *moved, "--no_load_best_model_at_end")
    assert json.loads(outcome.output)["checkpoint"] == str(Path("moved/checkpoint-6").resolve())


def test_checkpoint_may_be_selected_or_skipped(trained: Commands) -> None:
    """`--checkpoint` selects one; `--no-checkpoint` uses the model as the recipe builds it."""
    named = json.loads(trained("evaluate", "line.yaml", "--checkpoint", "out/checkpoint-2").output)
    assert named["eval_error"] == pytest.approx(error_of(slope_of(2)), rel=1e-5)
    as_made = json.loads(trained("evaluate", "line.yaml", "--no-checkpoint").output)
    assert as_made["checkpoint"] is None
    assert as_made["eval_error"] == pytest.approx(error_of(0.5), rel=1e-5)


def test_bad_checkpoint_is_rejected(trained: Commands) -> None:
    """A damaged checkpoint exits with 1 and names the good one; without any, the exit code is 2."""
    Path("out/checkpoint-4/model.safetensors").write_bytes(b"nothing")
    outcome = trained("evaluate", "line.yaml", "--checkpoint", "out/checkpoint-4")
    assert outcome.code == 1
    assert "Choose one of the good checkpoints: checkpoint-2" in outcome.errors
    outcome = trained("evaluate", "line.yaml", "--output_dir", "empty")
    assert outcome.code == 2
    assert "There is no checkpoint in empty; train first" in outcome.errors


def test_predictions_are_saved_as_arrays_or_json_lines(trained: Commands) -> None:
    """Both formats have predictions and labels of every sample; metrics are printed."""
    slope = slope_of(4)
    outcome = trained("predict", "line.yaml", "--output", "out.npz")
    assert outcome.code == 0
    assert json.loads(outcome.output)["test_error"] == pytest.approx(error_of(slope), rel=1e-5)
    arrays = np.load("out.npz", allow_pickle=False)
    assert arrays["predictions"].tolist() == pytest.approx([slope, 2 * slope, 3 * slope, 4 * slope], rel=1e-6)
    assert arrays["label_ids"].tolist() == [2.0, 4.0, 6.0, 8.0]
    assert trained("predict", "line.yaml", "--output", "out.jsonl").code == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == arrays["predictions"].tolist()
    assert [line["label"] for line in lines] == [2.0, 4.0, 6.0, 8.0]


def test_test_dataset_is_preferred_for_predictions(trained: Commands) -> None:
    """eval_dataset is used only if there is no test_dataset and it is a single data set."""
    text = RECIPE.replace("eval_strategy: steps", "eval_strategy: 'no'")
    several = "{few: {call: project.points, count: 2}, many: {call: project.points, count: 3}}"
    text = text.replace("eval_dataset: {call: project.points, count: 4, noise: 0.0}", f"eval_dataset: {several}")
    trained.write("several.yaml", text)
    outcome = trained("predict", "several.yaml", "--output", "out.jsonl")
    assert outcome.code == 2
    assert "eval_dataset has several datasets (few, many), so none is chosen; name one" in outcome.errors
    trained.write("tested.yaml", f"test_dataset: {{call: project.points, count: 3, noise: 0.0}}\n{text}")
    assert trained("predict", "tested.yaml", "--output", "out.jsonl").code == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 3


def test_model_without_outputs_is_rejected_for_prediction(trained: Commands) -> None:
    """No file is written if the model returns only a loss."""
    outcome = trained("predict", "line.yaml", "--output", "out.npz", "--prediction_loss_only")
    assert outcome.code == 1
    assert "the model returned only a loss" in outcome.errors
    assert not Path("out.npz").exists()


@pytest.mark.parametrize(
    ("predictions", "labels", "names", "lines"),
    [
        (np.array([1, 2]), None, ["predictions"], [{"prediction": 1}, {"prediction": 2}]),
        (
            (np.array([[1], [2]]), np.array([3, 4])),
            np.array([5, 6]),
            ["predictions_0", "predictions_1", "label_ids"],
            [{"prediction": [[1], 3], "label": 5}, {"prediction": [[2], 4], "label": 6}],
        ),
        (
            {"start": np.array([1, 2]), "end": (np.array([3, 4]),)},
            (np.array([5, 6]), np.array([7, 8])),
            ["predictions_start", "predictions_end_0", "label_ids_0", "label_ids_1"],
            [
                {"prediction": {"start": 1, "end": [3]}, "label": [5, 7]},
                {"prediction": {"start": 2, "end": [4]}, "label": [6, 8]},
            ],
        ),
        (
            np.array([np.nan, np.inf, -np.inf]),
            None,
            ["predictions"],
            [{"prediction": "NaN"}, {"prediction": "Infinity"}, {"prediction": "-Infinity"}],
        ),
    ],
)
def test_nested_outputs_are_written(
    tmp_path: Path, predictions: Any, labels: Any, names: list[str], lines: list[Any]
) -> None:
    """Several outputs become several arrays or nested JSON; NaN and infinities become strings."""
    path = tmp_path / "out.npz"
    path.write_bytes(to_npz(predictions, labels))
    assert list(np.load(path, allow_pickle=False)) == names
    assert [json.loads(line) for line in to_jsonl(predictions, labels).splitlines()] == lines


def test_python_objects_are_not_pickled() -> None:
    """Arrays of Python objects are rejected for .npz by name."""
    with pytest.raises(DataError, match="predictions_a cannot be written as"):
        to_npz({"a": np.array([None, {}], dtype=object)}, None)
