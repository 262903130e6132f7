"""The recipes of the documentation, run by the console script, shortened and in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.console import hexloop

ROOT = Path(__file__).parents[2]

SHORT: dict[str, list[str]] = {
    "digits": ["--max_steps", "46", "--logging_steps", "2"],
    "language_model": ["--max_steps", "16", "--logging_steps", "1"],
    "classifier": [
        *("--max_steps", "160", "--logging_steps", "10"),
        *("--learning_rate", "0.003", "--lr_scheduler_type", "constant_with_warmup"),
    ],
    "reverse_digits": ["--max_steps", "80", "--logging_steps", "4"],
}
"""Options that shorten each recipe: steps, and a matching learning rate."""

UNSAVED = ["--save_strategy", "no", "--eval_strategy", "no", "--no_load_best_model_at_end"]


def trained(name: str, folder: Path, *words: str) -> tuple[str, list[dict[str, Any]]]:
    """Train a recipe from the root of the repository; return its output and its log."""
    recipe = f"docs/examples/{name}.yaml"
    options = ["--output_dir", str(folder), "--report_to", "json_lines", "--disable_tqdm", *words]
    ended = hexloop("train", recipe, *options, folder=ROOT)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(name, marks=pytest.mark.matrix) for name in SHORT if name != "digits")]
)
def test_a_shortened_recipe_learns(name: str, tmp_path: Path) -> None:
    """Within a few steps the loss of every recipe falls by at least a third."""
    unsaved = UNSAVED if name != "digits" else []
    output, log = trained(name, tmp_path, "--logging_strategy", "steps", *SHORT[name], *unsaved)
    losses = [line["loss"] for line in log if "loss" in line]
    assert losses[-1] <= losses[0] * 2 / 3, losses
    assert f"look at {tmp_path / 'log.jsonl'}" in output.replace(f"{tmp_path / 'confusion.png'}, ", "")
    if name == "digits":
        assert {path.name for path in tmp_path.glob("*.png")} == {"confusion.png", "losses.png"}
        assert output.splitlines()[-1].endswith(" --resume --max_steps 92")


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(5))
def test_digits_are_classified_for_every_seed(seed: int, tmp_path: Path) -> None:
    """The full recipe classifies at least 98 % of the held-out digits correctly, for any training seed."""
    trained("digits", tmp_path, "--seed", str(seed))
    ended = hexloop("evaluate", "docs/examples/digits.yaml", "--output_dir", tmp_path, folder=ROOT)
    assert json.loads(ended.stdout)["eval_accuracy"] >= 0.98


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_language_model_beats_trigrams_and_generates_words(tmp_path: Path) -> None:
    """The full recipe needs fewer bits per byte than trigrams, and generates words of its corpus without copying it."""
    trained("language_model", tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["bits_per_byte"] < report["baseline_bits_per_byte"]
    assert report["known_share"] >= 0.8
    assert report["longest_copy"] < 60


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_classifier_beats_guessing(tmp_path: Path) -> None:
    """The full recipe is more accurate than always predicting the most frequent class."""
    trained("classifier", tmp_path)
    ended = hexloop("evaluate", "docs/examples/classifier.yaml", "--output_dir", tmp_path, folder=ROOT)
    metrics = json.loads(ended.stdout)
    assert metrics["eval_accuracy"] > 2 * metrics["eval_majority"]


@pytest.mark.matrix
def test_digits_are_reversed(tmp_path: Path) -> None:
    """The full recipe generates more than nine of ten held-out rows exactly, also with beam search."""
    _, log = trained("reverse_digits", tmp_path)
    rising = [line["eval_exact_match"] for line in log if "eval_exact_match" in line]
    assert rising[-1] > rising[0]
    for options in ([], ["--generation_num_beams", "2"]):
        ended = hexloop(
            "evaluate", "docs/examples/reverse_digits.yaml", "--output_dir", tmp_path, *options, folder=ROOT
        )
        assert json.loads(ended.stdout)["eval_exact_match"] > 0.9


def in_folder(folder: Path, recipe: str, *words: str) -> list[dict[str, Any]]:
    """Train a recipe, whose results go to `runs` in a folder; return its log."""
    options = ["--report_to", "json_lines", "--disable_tqdm", "--logging_steps", "2", *words]
    ended = hexloop("train", str(ROOT / "docs/examples" / f"{recipe}.yaml"), *options, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in (folder / "runs" / recipe / "log.jsonl").read_text().splitlines()]


@pytest.mark.matrix
def test_a_shortened_decoder_is_fine_tuned(tmp_path: Path) -> None:
    """Both recipes learn, and the second one saves its adapters alone and resumes."""
    first = in_folder(tmp_path, "assistant_base", "--max_steps", "30", "--save_steps", "30", "--eval_strategy", "no")
    second = in_folder(tmp_path, "assistant", "--max_steps", "20", "--save_strategy", "steps", "--save_steps", "10")
    for log, least in ((first, 0.9), (second, 0.98)):
        losses = [line["loss"] for line in log if "loss" in line]
        assert losses[-1] < least * losses[0], losses
    found = json.loads((tmp_path / "runs" / "assistant" / "samples.json").read_text())
    assert len(found) == 8
    folder = tmp_path / "runs" / "assistant" / "checkpoint-20"
    assert (folder / "adapter_model.safetensors").exists()
    assert not (folder / "model.safetensors").exists()
    resumed = in_folder(tmp_path, "assistant", "--max_steps", "22", "--save_strategy", "no", "--resume", str(folder))
    assert [line["step"] for line in resumed if "loss" in line][-1] == 22


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_the_assistant_learns_to_answer(tmp_path: Path) -> None:
    """After both full recipes, all answers end as a sentence, differ by question, and are more probable than before."""
    in_folder(tmp_path, "assistant_base")
    log = in_folder(tmp_path, "assistant")
    losses = [line["eval_loss"] for line in log if "eval_loss" in line]
    assert losses[-1] < 0.85 * losses[0]
    found = json.loads((tmp_path / "runs" / "assistant" / "samples.json").read_text())
    assert sum(each["after"].endswith(".<end>") for each in found) >= 7
    assert len({each["after"] for each in found}) >= 4
