"""Training on XLA, compared with torch on the CPU: losses, weights, resume, and what is compiled and transferred."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla.debug.metrics as metrics
from safetensors.torch import load_file
from torch import Tensor, nn

from hexloop import TrainerCallback, TrainingArguments
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, small_trainer

ROOT = Path(__file__).parents[2]


def trained(folder: Path, resume: str | None = None, model: Any = None, callbacks: Any = (), **given: Any) -> Any:
    """Return the Trainer of a run, by default of 50 steps, on the preferred device."""
    chosen = {"max_steps": 50, "num_train_epochs": 13, "use_cpu": False, **given}
    parts = {"model": model or net(), "eval_dataset": rows(10, seed=1), "callbacks": list(callbacks)}
    trainer = small_trainer(folder, parts=parts, **chosen)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def on_host(trainer: Any) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}


SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {"optim": "sgd", "max_grad_norm": 0.1},
    "accumulation": {"gradient_accumulation_steps": 2},
    "syncfree adamw": {"optim": "adamw_torch_xla"},
}


@pytest.mark.parametrize("setting", [*SETTINGS, pytest.param("evaluation", marks=pytest.mark.matrix)])
def test_it_trains_as_torch_does(tmp_path: Path, setting: str) -> None:
    """The losses of 50 steps, the evaluations and the weights agree to 1e-5."""
    given = SETTINGS.get(setting, {"eval_strategy": "steps", "eval_steps": 10})
    ours = trained(tmp_path / "xla", **given)
    on_cpu = {**given, "optim": "adamw_torch" if given.get("optim") != "sgd" else "sgd"}
    theirs = trained(tmp_path / "cpu", use_cpu=True, **on_cpu)

    assert ours.adapters.device.name == "xla:0"
    assert {each.device.type for each in ours.model.parameters()} == {"xla"}
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5, abs=1e-6)
    for one, other in zip(history(ours), history(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    for name, tensor in on_host(ours).items():
        torch.testing.assert_close(tensor, theirs.model.state_dict()[name], rtol=1e-5, atol=1e-5)


def test_it_trains_in_bf16(tmp_path: Path) -> None:
    """The losses agree with those of torch's bf16 to 1e-2."""
    ours, theirs = trained(tmp_path / "xla", bf16=True), trained(tmp_path / "cpu", bf16=True, use_cpu=True)
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-2, abs=1e-2)


class Counters(TrainerCallback):
    """Notes torch_xla's counts of compilations and transfers from the device after each step."""

    def __init__(self) -> None:
        self.compiled: list[int] = []
        self.read: list[int] = []

    def on_step_end(self, *given: Any, **named: Any) -> None:
        for name, counts in (("CompileTime", self.compiled), ("TransferFromDeviceTime", self.read)):
            data = metrics.metric_data(name)
            counts.append(data[0] if data else 0)


def test_few_programs_are_compiled_and_nothing_is_read_between_logs(tmp_path: Path) -> None:
    """At most two compilations after the third step; a value is read only where a log is due."""
    counters = Counters()
    trained(tmp_path, callbacks=[counters], logging_steps=20)
    assert counters.compiled[-1] - counters.compiled[2] <= 2
    reads = [later - earlier for earlier, later in zip(counters.read, counters.read[1:], strict=False)]
    assert {step + 2 for step, count in enumerate(reads) if count} <= {21, 41}


def test_saved_weights_are_the_trained_ones(tmp_path: Path) -> None:
    """In a verified checkpoint, and in what save_model writes."""
    trainer = trained(tmp_path, max_steps=6, save_strategy="steps", save_steps=3)
    trainer.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "checkpoint-6", tmp_path / "saved"):
        saved = load_file(folder / "model.safetensors")
        assert all(torch.equal(tensor, saved[name]) for name, tensor in on_host(trainer).items())
    assert not torch.equal(saved["layers.0.weight"], net().state_dict()["layers.0.weight"])


SCRIPT = """
import json, sys
from pathlib import Path
from tests.xla.test_training import on_host, trained
from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import history
folder, resume = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
trainer = trained(Path(folder), resume, net(0.3), max_steps=12, save_strategy="steps", save_steps=5)
print(json.dumps([history(trainer), {name: each.tolist() for name, each in on_host(trainer).items()}]))
"""


def run(*words: str) -> Any:
    """Run the script above in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], check=False, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PJRT_DEVICE": "CPU"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_resumes_exactly_in_a_fresh_process(tmp_path: Path) -> None:
    """With dropout, which is drawn on the device."""
    whole = run(str(tmp_path / "whole"))
    resumed = run(str(tmp_path / "resumed"), str(tmp_path / "whole" / "checkpoint-5"))
    assert resumed[1] == whole[1]
    assert resumed[0][:-1] == whole[0][:-1]


class Tied(Net):
    """Uses one matrix twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return super().forward(self.second(self.first(x)), labels)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """Moving the model makes parameters of their own; they are trained as one."""
    torch.manual_seed(7)
    model = Tied()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours = trained(tmp_path / "xla", model=model, max_steps=10)
    assert ours.model.first.weight is ours.model.second.weight
    again = Tied()
    again.load_state_dict(state)
    theirs = trained(tmp_path / "cpu", model=again, max_steps=10, use_cpu=True)
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)


def test_the_arguments_choose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless USE_TORCH_XLA or use_cpu turns it off."""
    assert TrainingArguments("out").device == torch.device("xla:0")
    assert TrainingArguments("out", use_cpu=True).device == torch.device("cpu")
    monkeypatch.setenv("USE_TORCH_XLA", "false")
    assert TrainingArguments("out").device == torch.device("cpu")


def test_metrics_of_the_runtime_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With debug="tpu_metrics_debug" at the end of each epoch and after each evaluation."""
    trained(tmp_path, debug="tpu_metrics_debug", max_steps=-1, num_train_epochs=2, eval_strategy="epoch")
    assert capsys.readouterr().out.count("Metric: CompileTime") == 4


class Widening(TrainerCallback):
    """Gives the model another layer after the fourth step, so that its program is another one."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **named: Any) -> None:
        if state.global_step == 4:
            model.layers.append(nn.Identity())
            model.layers.append(nn.Tanh())


def test_compiling_has_its_share_of_the_time(tmp_path: Path) -> None:
    """By torch_xla's metrics: where programs are new, and nowhere else; the shares are all of the time."""
    given: dict[str, Any] = {
        "max_steps": 8, "num_train_epochs": 2, "dataloader_drop_last": True, "log_goodput": True
    }  # fmt: skip
    size = 3  # which no other test has, whose programs would be the same
    trainer = trained(tmp_path, callbacks=[Widening()], per_device_train_batch_size=size, **given)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    shares = [entry["badput_compiling"] for entry in logs]
    assert shares[0] > 0
    assert shares[4] > 0
    assert shares[3] == shares[7] == 0
    for entry in logs:
        parts = [value for name, value in entry.items() if name.startswith(("goodput", "badput_"))]
        assert sum(parts) == pytest.approx(100, abs=1)
