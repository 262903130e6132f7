"""What `hexloop init` writes is valid, trains, and trains the same as a recipe and as a script."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

from hexloop.app.command_line.init import STARTERS
from tests.end_to_end.console import ENVIRONMENT, hexloop
from tests.end_to_end.fine_tuning import small
from tests.warm_python import warm_python


def small_encoder(folder: Path) -> None:
    """Save a tiny encoder with random weights and its tokenizer, which a classifier starts from."""
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "the": 2, "was": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {"dim": 8, "hidden_dim": 16, "n_layers": 1, "n_heads": 2}
    config = DistilBertConfig(vocab_size=4, max_position_embeddings=32, **sizes)
    DistilBertForSequenceClassification(config).save_pretrained(folder)


def small_decoder(folder: Path) -> None:
    """Save a tiny language model with random weights and its tokenizer with a chat template."""
    small.llama().save_pretrained(folder)
    small.tokenizer().save_pretrained(folder)


WAYS = {
    "own": ["--kind", "own"],
    "text": ["--kind", "text", "--model", "base"],
    "chat": ["--kind", "chat", "--model", "base"],
    "lora": ["--kind", "chat", "--model", "base", "--lora"],
}


def weights(folder: Path) -> dict[str, bytes]:
    """Return the weights in each checkpoint of a run."""
    found = (folder / "runs" / "first").glob("checkpoint-*/*model*.safetensors")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.one_in(100)
@pytest.mark.parametrize("way", WAYS)
def test_the_recipe_and_the_script_train_the_same(tmp_path: Path, way: str) -> None:
    """The recipe has no mistake, both train as they are, and their checkpoints have bitwise equal weights."""
    if way == "text":
        small_encoder(tmp_path / "base")
    elif way != "own":
        small_decoder(tmp_path / "base")
    for name in ("recipe", "script"):
        written = hexloop("init", name, *WAYS[way], folder=tmp_path)
        assert written.returncode == 0, written.stderr
        assert f"hexloop train {name}/recipe.yaml --check" in written.stdout
    checked = hexloop("train", "recipe.yaml", "--check", folder=tmp_path / "recipe")
    assert checked.returncode == 0, checked.stderr  # where peft is imported, other libraries may write there
    assert checked.stdout == "recipe.yaml: no mistake was found. Nothing was trained.\n"
    assert not (tmp_path / "recipe" / "runs").exists()
    trained = hexloop("train", "recipe.yaml", folder=tmp_path / "recipe")
    assert trained.returncode == 0, trained.stderr
    script = subprocess.run(
        [warm_python(), "train.py"],
        cwd=tmp_path / "script",
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert script.returncode == 0, script.stderr
    found = weights(tmp_path / "recipe")
    assert len(found) >= 1
    assert found == weights(tmp_path / "script")
    if way == "own":
        assert "the best eval_accuracy was 0.9" in trained.stdout or "the best eval_accuracy was 1" in trained.stdout


def test_the_check_reports_mistakes(tmp_path: Path) -> None:
    """`train --check` reports what `train` would, and exits with 2."""
    assert hexloop("init", "--kind", "own", folder=tmp_path).returncode == 0
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("width: 64", "widht: 64"))
    checked = hexloop("train", "recipe.yaml", "--check", "--lr", "1", folder=tmp_path)
    assert (checked.returncode, checked.stdout) == (2, "")
    assert "did you mean width?" in checked.stderr
    assert "did you mean --learning_rate?" in checked.stderr


def test_own_data_take_the_place_of_samples(tmp_path: Path) -> None:
    """Data are named relative to the written code; no samples are written."""
    (tmp_path / "reviews.jsonl").write_text('{"text": "fine", "label": "good"}\n')
    written = hexloop("init", "run", "--kind", "text", "--data", "reviews.jsonl", folder=tmp_path)
    assert written.returncode == 0, written.stderr
    assert sorted(os.listdir(tmp_path / "run")) == ["my_project.py", "recipe.yaml", "train.py"]
    assert 'file: "../reviews.jsonl"' in (tmp_path / "run" / "recipe.yaml").read_text()
    assert STARTERS["text"].model in (tmp_path / "run" / "recipe.yaml").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Each file that exists is named, also a dangling link, and nothing is written."""
    (tmp_path / "train.py").write_text("mine")
    (tmp_path / "recipe.yaml").symlink_to("nowhere")
    refused = hexloop("init", "--kind", "own", folder=tmp_path)
    assert refused.returncode == 2
    assert "train.py exists already" in refused.stderr
    assert "recipe.yaml exists already" in refused.stderr
    assert sorted(os.listdir(tmp_path)) == ["recipe.yaml", "train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Choose what to start from with --kind (own: "),
        (["--kind", "chat", "--data", "none.jsonl"], "You chose --data none.jsonl, but there is no such file"),
        (["--kind", "own", "--model", "x"], "--model has no effect with --kind own"),
        (["--kind", "text", "--lora"], "--lora has no effect with --kind text"),
        (["--kind", "image"], "invalid choice: 'image'"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, words: list[str], expected: str) -> None:
    """Without a terminal there are no questions. Nothing is written."""
    ended = subprocess.run(
        [warm_python(), "-m", "hexloop", "init", *words],
        cwd=tmp_path, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert expected in ended.stderr
    assert not os.listdir(tmp_path)


def test_questions_are_asked_on_a_terminal(tmp_path: Path) -> None:
    """An unknown kind is asked for again; an empty answer means the usual."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [warm_python(), "-m", "hexloop", "init", "run"],
        cwd=tmp_path, env={**ENVIRONMENT, "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, b"image\nchat\nsome/model\n\n\n")
        shown = b""
        while True:
            try:
                shown += os.read(ours, 2**16)
            except OSError:  # the process has ended
                break
    os.close(ours)
    assert process.returncode == 0, shown
    assert b"'image' is none of them." in shown
    recipe = (tmp_path / "run" / "recipe.yaml").read_text()
    assert 'model: "some/model"' in recipe
    assert "peft_config" in recipe, "adapters are the usual"
    samples = (tmp_path / "run" / "data.jsonl").read_text().splitlines()
    assert json.loads(samples[1])["messages"][1]["content"] == "It is 2."
