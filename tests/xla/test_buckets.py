"""On XLA a run of varying lengths compiles a bounded number of times, if its batches are padded to few lengths."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.small.sequences import pad, sentences, tagger
from tests.end_to_end.small.trainers import small_trainer
from tests.xla.test_training import Counters, losses

FEW: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "pad_to_multiple_of": (2, {"data_collator": partial(pad, multiple=16)}, {}),
    "compile_buckets": (3, {"data_collator": pad}, {"compile_buckets": 3}),
}
"""How batches get few lengths: how many, the collator, and the arguments."""


def run(folder: Path, parts: dict[str, Any], **given: Any) -> tuple[Any, list[int]]:
    """Train three epochs of 16 steps; return the Trainer, and how often had been compiled after each step."""
    counters = Counters()
    data: dict[str, Any] = {"model": tagger(), "train_dataset": sentences(64), "callbacks": [counters]}
    trainer = small_trainer(folder, parts={**data, **parts}, num_train_epochs=3, logging_steps=16, **given)
    trainer.train()
    return trainer, counters.compiled


@pytest.mark.parametrize("way", FEW)
def test_few_lengths_are_few_programs(tmp_path: Path, way: str) -> None:
    """Each length is compiled when it first comes, and not again; losses are those of the CPU."""
    lengths, parts, given = FEW[way]
    ours, compiled = run(tmp_path / "xla", parts, use_cpu=False, **given)
    theirs, _ = run(tmp_path / "cpu", parts, use_cpu=True, **given)

    assert ours.adapters.device.name == "xla:0"
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5, abs=1e-6)
    assert compiled[-1] - compiled[2] <= 2 * lengths
    assert compiled[-1] == compiled[32]


def test_many_lengths_are_many_programs(tmp_path: Path) -> None:
    """What the tests above avoid, although the process has some of these programs already."""
    _, compiled = run(tmp_path, {"data_collator": pad}, use_cpu=False)
    assert compiled[-1] - compiled[2] > 6
