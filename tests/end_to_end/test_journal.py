"""The journal of a Trainer's run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexloop import TrainerCallback
from hexloop.adapters.batches.torch.random_streams import random_fingerprint
from hexloop.adapters.batches.torch.structure import batch_fingerprint
from hexloop.adapters.journal import read
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.journal import compare, timelines
from hexloop.testing import MemoryJournal
from tests.end_to_end.small.models import Noisy, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


def noted(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the entries of a kind in a run's journal."""
    return [note for note in read(folder / ".hexloop/journal.jsonl") if note["kind"] == kind]


def test_every_phase_of_a_save_is_recorded(tmp_path: Path) -> None:
    """Each phase occurs once, in order, with the digests of the weights' files in the manifest."""
    small_trainer(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=1, max_steps=4).train()
    saves = noted(tmp_path, "save")
    first = [note["phase"] for note in saves if note["checkpoint"] == "checkpoint-2"]
    assert first == ["began", "taken", "first_byte", "written", "published"]
    assert [note["phase"] for note in saves][-1] == "rotated"
    digests = [note["weights"]["model.safetensors"] for note in saves if note["phase"] == "published"]
    assert len(set(digests)) == 2
    assert [note["step"] for note in noted(tmp_path, "ended")] == [4]


def test_logs_are_recorded_with_random_states(tmp_path: Path) -> None:
    """Entries of the history, each with a fingerprint that changes after each step with dropout."""
    trainer = small_trainer(tmp_path, save_strategy="epoch", parts={"model": net(0.3)})
    trainer.train()
    logged = noted(tmp_path, "logged")
    assert [note["values"]["loss"] for note in logged[:-1]] == [each["loss"] for each in trainer.state.log_history[:-1]]
    assert len({note["random"] for note in logged[:-1]}) == 4


def test_steps_are_recorded_without_early_reads_of_losses(tmp_path: Path) -> None:
    """Batches, rates and random states at each step; losses, for windows of two batches, when a log is due."""
    kinds: list[list[str]] = []
    journal = MemoryJournal()

    class Looks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kinds.append([str(note["kind"]) for note in journal.notes if note["kind"] != "information"])

    trainer = small_trainer(
        tmp_path,
        journal="steps",
        max_steps=4,
        logging_steps=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        parts={"train_dataset": rows(40), "journal": journal, "callbacks": [Looks()]},
    )
    trainer.train()
    assert kinds[-1] == ["began", "step", "step", "step", "step"]
    losses: Any = next(note["losses"] for note in journal.notes if note["kind"] == "losses")
    assert sum(losses) / 4 == pytest.approx(trainer.state.log_history[0]["loss"], rel=1e-6)
    fingerprints: Any = [note["batches"] for note in journal.notes if note["kind"] == "step"]
    assert [len(each) for each in fingerprints] == [2, 2, 2, 2]
    assert len({each for window in fingerprints for each in window}) == 8


def test_a_run_that_writes_nothing_keeps_no_journal(tmp_path: Path) -> None:
    """Neither without checkpoints, nor with `off`, nor with in-memory storage."""
    small_trainer(tmp_path / "no").train()
    small_trainer(tmp_path / "off", save_strategy="epoch", journal="off").train()
    small_trainer(tmp_path / "memory", save_strategy="epoch", parts={"storage": MemoryStorage()}).train()
    assert list(tmp_path.rglob("journal.jsonl")) == []
    with pytest.raises(ConfigurationError, match="cannot be appended to"):
        small_trainer(tmp_path, journal="steps", parts={"storage": MemoryStorage()})


@pytest.mark.parametrize("journal", ["off", "events", "steps"])
def test_the_journal_does_not_change_the_run(tmp_path: Path, journal: str) -> None:
    """The weights are bitwise equal at every journal level."""
    parts = {"model": net(0.3), "train_dataset": Noisy(16)}
    plain = small_trainer(tmp_path / "plain", parts=parts)
    plain.train()
    kept = small_trainer(tmp_path / "kept", journal=journal, save_strategy="epoch", parts={**parts, "model": net(0.3)})
    kept.train()
    assert same_weights(weights(kept), weights(plain))


def test_data_without_a_fingerprint_do_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A journal failure is reported once, and the run continues without a journal."""

    class Odd(dict[str, Tensor]):
        def items(self) -> Any:
            if self.get("x") is not None and len(self) == 2:
                raise RuntimeError("no items")
            return super().items()

    def collate(samples: list[Any]) -> Any:
        return Odd({name: torch.stack([sample[name] for sample in samples]) for name in ("x", "labels")})

    trainer = small_trainer(tmp_path, journal="steps", parts={"data_collator": collate})
    trainer.args.remove_unused_columns = False
    assert trainer.train().global_step == 4
    assert len([text for text in caplog.messages if "The journal failed (RuntimeError: no items)" in text]) == 1


def test_two_runs_in_one_folder_are_distinguished(tmp_path: Path) -> None:
    """A second run appends to the journal of the first, and both can be compared."""
    for seed in (1, 1):
        small_trainer(tmp_path, save_strategy="epoch", seed=seed, parts={"model": net(0.3)}).train()
    one, other = timelines(read(tmp_path / ".hexloop/journal.jsonl")).values()
    assert compare(one, other).first is None
    assert compare(one, other).last == 4


def test_a_fingerprint_depends_on_values_types_and_shapes() -> None:
    """It does not depend on the order in which a mapping was filled, or on a tensor's strides."""
    x = torch.arange(6.0).reshape(2, 3)
    same = [{"a": x, "b": [1, "t"]}, {"b": [1, "t"], "a": x.t().contiguous().t()}]
    others = [
        {"a": x + 1, "b": [1, "t"]},
        {"a": x.double(), "b": [1, "t"]},
        {"a": x.reshape(3, 2), "b": [1, "t"]},
        {"a": x, "b": [2, "t"]},
        {"a": x, "c": [1, "t"]},
        {"a": x.numpy(), "b": [1, "t"]},
        {"a": x.bfloat16(), "b": None},
        {"a": torch.tensor(1.0), "b": torch.zeros(0, 2)},
    ]
    assert len({batch_fingerprint(batch) for batch in same}) == 1
    assert len({batch_fingerprint(batch) for batch in [same[0], *others]}) == 1 + len(others)
    assert batch_fingerprint({"a": x.to("meta")}) is None


def test_the_fingerprint_covers_each_random_generator() -> None:
    """Drawing from any of the three changes it; computing it does not."""
    import random

    import numpy as np

    seen = [random_fingerprint("cpu"), random_fingerprint("cpu")]
    assert seen[0] == seen[1]
    for draw in (random.random, random.gauss, np.random.rand, lambda: torch.rand(1)):
        draw()
        seen.append(random_fingerprint("cpu"))
    assert len(set(seen)) == 5
