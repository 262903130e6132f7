"""What a run with losses that are not finite logs, reports, and waits for; and what can be seen of it afterwards."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hexloop import Trainer, TrainerCallback
from hexloop.app.command_line import main
from hexloop.domain.errors import ConfigurationError, NotFiniteError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer, weights


def planted(*bad: int, value: float = math.nan, count: int = 32) -> list[dict[str, Tensor]]:
    """Return samples, some of which have a label that is not finite."""
    found = rows(count)
    for number in bad:
        found[number]["labels"] = found[number]["labels"] * value
    return found


def trained(folder: Path, data: Any, **given: Any) -> Any:
    """Return a Trainer after a run over the data in order, 4 samples a step."""
    chosen = {"train_sampling_strategy": "sequential", "logging_steps": 2, "save_strategy": "no", **given}
    trainer = small_trainer(folder, parts={"train_dataset": data, "model": net(0.2)}, **chosen)
    trainer.train()
    return trainer


def logged(trainer: Any, name: str) -> list[Any]:
    """Return what was logged under a name."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_the_log_says_what_is_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The mean of the finite losses with the number of the others, NaN without any; one warning; and train_loss."""
    trainer = trained(tmp_path, planted(9), journal="steps", save_strategy="steps", save_steps=4)
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.startswith("At step 3 the loss is nan (samples 8 to 11 of epoch 0). They are 8, 9, 10, 11 in the ")
    for word in (
        "learning rate",
        "precision",
        "debug='underflow_overflow'",
        "on_nonfinite='stop', 'skip' or 'rollback",
    ):
        assert word in warning
    losses = logged(trainer, "loss")
    assert math.isfinite(losses[0])
    assert all(map(math.isnan, losses[1:]))
    assert logged(trainer, "nonfinite_steps") == [2, 2, 2]
    assert logged(trainer, "train_nonfinite_steps") == [6]
    assert all(map(math.isnan, logged(trainer, "train_loss")))


def test_a_single_loss_without_a_gradient_is_counted(tmp_path: Path) -> None:
    """The others' mean is logged, and training is not affected."""

    class Undefined(Trainer):
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(*given, **named)
            return loss.detach() * math.nan + 0 * loss if self.state.global_step == 2 else loss

    def losses(kind: type[Trainer], **given: Any) -> list[float]:
        chosen = {"train_sampling_strategy": "sequential", "save_strategy": "no", "logging_steps": 4, **given}
        trainer = small_trainer(tmp_path, kind, {"train_dataset": rows(16)}, **chosen)
        trainer.train()
        return logged(trainer, "loss")

    each = losses(Trainer, logging_steps=1)
    assert losses(Undefined)[0] != 0.0
    assert losses(Trainer) == [pytest.approx(sum(each) / 4)]


@pytest.mark.parametrize("reaction", ["skip", "rollback"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_run_without_the_windows(reaction: str, value: float, tmp_path: Path) -> None:
    """With dropout and accumulation, weights and logs are those of data that lack them; a resumed run too."""
    given: dict[str, Any] = {
        "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "max_steps": 14, "save_strategy": "steps",
        "save_steps": 3, "on_nonfinite": reaction,
    }  # fmt: skip
    data = planted(5, 12, 13, 30, 47, value=value, count=48)
    lacking = [row for number, row in enumerate(data) if number // 4 not in (1, 3, 7, 11)]
    one = trained(tmp_path / "1", data, **given)
    other = trained(tmp_path / "2", lacking, **given)
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())
    assert logged(one, "loss") == logged(other, "loss")
    resumed = small_trainer(
        tmp_path / "1", parts={"train_dataset": data, "model": net(0.2)}, train_sampling_strategy="sequential", **given,
        logging_steps=2,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "1" / "checkpoint-6"))
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(resumed).items())


class Reads(TorchFunctionMode):
    """Counts what makes a process wait for a GPU: tensors that become numbers, between two steps."""

    NAMES = frozenset({"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy", "equal"})

    def __init__(self) -> None:
        super().__init__()
        self.counts = False
        self.found: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.counts and getattr(function, "__name__", "") in self.NAMES:
            self.found.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Between(TrainerCallback):
    """Counts the reads from one step to another."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.reads.counts = 4 <= state.global_step < 140

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.reads.counts = 4 <= state.global_step < 140


@pytest.mark.parametrize("reaction", ["warn", "stop", "skip", "rollback"])
def test_nothing_is_read_between_logs(reaction: str, tmp_path: Path) -> None:
    """No policy reads a tensor where a run without the check reads none."""
    with Reads() as reads:
        small_trainer(
            tmp_path,
            parts={"train_dataset": rows(600), "callbacks": [Between(reads)]},
            logging_steps=1000, save_strategy="no", max_steps=150, on_nonfinite=reaction, on_spike=reaction,
            spike_factor=1000.0, journal="off",
        ).train()  # fmt: skip
    assert reads.found == []


def test_a_log_reads_all_values_at_once(tmp_path: Path) -> None:
    """So that the test above could fail: the reads of a log are seen, and do not depend on the number of steps."""

    def found(every: int) -> list[str]:
        reads = Reads()
        with reads:
            parts = {"train_dataset": rows(600), "callbacks": [Between(reads)]}
            given: dict[str, Any] = {"logging_steps": every, "max_steps": 150, "save_strategy": "no", "journal": "off"}
            small_trainer(tmp_path, parts=parts, **given).train()
        return reads.found

    seldom, often = found(100), found(50)
    assert 0 < len(seldom) <= 8
    assert len(often) == 2 * len(seldom)


def test_what_cannot_return_is_refused(tmp_path: Path) -> None:
    """With the way out, before the first step."""
    with pytest.raises(ConfigurationError, match="transformers trains on every step"):
        trained(tmp_path, rows(8), on_nonfinite="skip", reproduce="transformers")

    class Overriding(Trainer):
        def _maybe_log_save_evaluate(self, *given: Any, **named: Any) -> Any:
            return super()._maybe_log_save_evaluate(*given, **named)

    with pytest.raises(ConfigurationError, match="_maybe_log_save_evaluate is overridden"):
        small_trainer(tmp_path, Overriding, on_nonfinite="rollback").train()


def test_stop_leaves_good_checkpoints(tmp_path: Path) -> None:
    """The run ends with an error, and nothing that followed is saved."""
    with pytest.raises(NotFiniteError, match=r"At step 6 the loss is nan \(samples 20 to 23 of epoch 0\)"):
        trained(tmp_path, planted(21), on_nonfinite="stop", save_strategy="steps", save_steps=4)
    assert [each.name for each in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert main(["checkpoints", "verify", str(tmp_path)]) == 0


def test_verify_names_weights_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are intact, so the checkpoint is good, with a finding."""
    trained(tmp_path, planted(21), save_strategy="steps", save_steps=4)
    capsys.readouterr()
    assert main(["checkpoints", "verify", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "checkpoint-4: good\n" in told
    assert "checkpoint-8: good\n  its files are intact, but 49 of its weights are not finite, in 4 of 4 tensors" in told
    assert told.endswith("With weights that are not finite: 1.\n")
    assert main(["checkpoints", "verify", "--json", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == 1
    assert [bool(each["finding"]) for each in document["checkpoints"]] == [False, True]


def test_the_report_and_the_journal_know_it(tmp_path: Path) -> None:
    """The page lists the steps, and says that the last loss is not finite."""
    trained(tmp_path / "kept", planted(9, 25), on_nonfinite="skip", save_strategy="steps", save_steps=3)
    trained(tmp_path / "lost", planted(9), save_strategy="steps", save_steps=3)
    assert main(["report", str(tmp_path / "kept"), "--out", str(tmp_path / "kept.html")]) == 0
    page = (tmp_path / "kept.html").read_text()
    assert "Losses that were not usable" in page
    assert "8 to 11 of epoch 0 (in the dataset 8, 9, 10, 11)" in page
    assert main(["report", str(tmp_path / "lost"), "--out", str(tmp_path / "lost.html")]) == 0
    assert "not finite at step 8" in (tmp_path / "lost.html").read_text()
