"""What a user passes on XLA: an optimizer made before, options that need another device, and `trainer.accelerator`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hexloop import ConfigurationError, ParallelMode, Trainer, TrainingArguments
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import small_trainer
from tests.xla.test_training import Tied, losses

pytestmark = pytest.mark.filterwarnings("ignore:Use torch_xla.sync instead:DeprecationWarning")  # by accelerate

ROOT = Path(__file__).parents[2]


def test_runs_have_a_parallel_mode_of_their_own() -> None:
    """The one that transformers has for them; a run on the CPU has that of the CPU."""
    assert TrainingArguments("out").parallel_mode is ParallelMode.TPU
    assert TrainingArguments("out", use_cpu=True).parallel_mode is ParallelMode.NOT_PARALLEL


# The optimizer


@pytest.mark.parametrize("tied", [False, True])
def test_an_optimizer_made_on_the_cpu_is_used(tmp_path: Path, tied: bool) -> None:
    """The parameters stay the same objects when the model is moved, also one with two names."""

    def run(**given: Any) -> tuple[Any, list[int], Any]:
        torch.manual_seed(7)
        model: nn.Module = Tied() if tied else net()
        optimizer = torch.optim.AdamW([{"params": model.parameters(), "lr": 0.05, "weight_decay": 0.1}])
        before = list(map(id, model.parameters()))
        parts = {"model": model, "optimizers": (optimizer, None)}
        trainer = small_trainer(tmp_path, parts=parts, num_train_epochs=3, **given)
        trainer.train()
        assert trainer.optimizer is optimizer
        return trainer, before, model

    ours, before, model = run(use_cpu=False)
    theirs, _, _ = run()
    assert list(map(id, model.parameters())) == before
    assert {each.device.type for each in model.parameters()} == {"xla"}
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5, abs=1e-6)
    for name, tensor in ours.model.state_dict().items():
        torch.testing.assert_close(tensor.cpu(), theirs.model.state_dict()[name], rtol=1e-5, atol=1e-5)


class MovesItself(Trainer):
    """Moves the model in its own way, by which torch replaces the parameters."""

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        model.to(device)


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    """Before the first step: it would train nothing."""
    model = net()
    parts = {"model": model, "optimizers": (torch.optim.AdamW(model.parameters()), None)}
    trainer = small_trainer(tmp_path, MovesItself, parts, use_cpu=False)
    with pytest.raises(ConfigurationError, match=r"none of the model.s parameters.*moved to xla:0\. Move the model"):
        trainer.train()


# What needs another device


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fp16": True}, "the precision fp16, but the device xla computes in bf16, fp32 only"),
        ({"fsdp": "full_shard"}, "FSDP .* on the device xla, but .*set xla to True in fsdp_config"),
        ({"fsdp": True, "fsdp_config": {"xla": True, "cpu_offload": True}}, "FSDP on XLA has no such setting"),
        (
            {"fsdp": True, "fsdp_config": {"xla": True, "xla_fsdp_settings": {"flatten_parameters": True}}},
            "flatten_parameters.*leave it out",
        ),
        ({"torch_compile": True}, "torch_compile=True with the parallelism xla"),
        ({"torch_compile": True, "fsdp": True, "fsdp_config": {"xla": True}}, "torch_compile=True with .*xla_fsdp"),
    ],
)
def test_what_xla_cannot_do_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    """When the Trainer is made."""
    with pytest.raises(ConfigurationError, match=said):
        small_trainer(tmp_path, use_cpu=False, **given)


def test_a_user_optimizer_is_refused_with_shards(tmp_path: Path) -> None:
    """As with the other engines that replace parameters."""
    model = net()
    parts = {"model": model, "optimizers": (torch.optim.AdamW(model.parameters()), None)}
    trainer = small_trainer(tmp_path, parts=parts, use_cpu=False, fsdp=True, fsdp_config={"xla": True})
    with pytest.raises(ConfigurationError, match="xla_fsdp replaces the parameters that it holds"):
        trainer.train()


MAKE = """
from pathlib import Path
from hexloop import ConfigurationError
from tests.end_to_end.small.trainers import small_trainer
try:
    small_trainer(Path("out"), use_cpu=False)
except ConfigurationError as error:
    print("REFUSED:", error)
"""


def test_a_kind_of_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """PJRT_DEVICE names it."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "PJRT_DEVICE": "TPU", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "REFUSED: The device xla cannot be used: PJRT_DEVICE='TPU', but XLA's runtime finds no such" in done.stdout


@pytest.mark.matrix
def test_a_process_that_has_trained_before_xla_started_is_refused(tmp_path: Path) -> None:
    """Autograd has no place for another device then."""
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\ntorch.ones((), requires_grad=True).backward()\n{MAKE}"], check=False,
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "PJRT_DEVICE": "CPU", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "REFUSED: The device xla cannot be used: this process has made a backward pass before" in done.stdout


# The accelerator


def test_the_accelerator_is_that_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its device, its process, and tensors of all processes."""
    accelerator = small_trainer(tmp_path, use_cpu=False).accelerator
    assert accelerator.device == torch.device("xla:0")
    assert (accelerator.process_index, accelerator.num_processes, accelerator.is_main_process) == (0, 1, True)
    accelerator.print("printed")
    assert capsys.readouterr().out == "printed\n"
    tensor = torch.arange(3.0, device=accelerator.device)
    for found in (
        accelerator.gather(tensor),
        accelerator.reduce(tensor, "mean"),
        accelerator.pad_across_processes(tensor),
        accelerator.gather_for_metrics(tensor),
        accelerator.real.gather(tensor),
        accelerator.real.reduce(tensor, "sum"),
    ):
        assert found.device.type == "xla"
        assert found.tolist() == [0.0, 1.0, 2.0]
    assert accelerator.gather_for_metrics(["a", "b"]) == ["a", "b"]
    accelerator.wait_for_everyone()
    assert accelerator.free_memory(1, 2) == [None, None]


class CallsBackward(Trainer):
    """Makes the backward pass by the accelerator."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        return loss.detach()


def test_overridden_steps_make_the_backward_pass_by_it(tmp_path: Path) -> None:
    ours = small_trainer(tmp_path, CallsBackward, use_cpu=False, num_train_epochs=3)
    theirs = small_trainer(tmp_path, CallsBackward, num_train_epochs=3)
    for trainer in (ours, theirs):
        trainer.train()
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5, abs=1e-6)


def test_a_loop_of_the_user_trains_what_it_prepares(tmp_path: Path) -> None:
    """With accelerate's own loaders and optimizers for XLA."""
    found = {}
    for use_cpu in (False, True):
        accelerator = small_trainer(tmp_path, use_cpu=use_cpu).accelerator
        model: Any = net()
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
        loader: Any = DataLoader(rows(16), batch_size=4)  # type: ignore[arg-type]
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses_of_loop = []
        for _ in range(2):
            for batch in loader:
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                losses_of_loop.append(loss.detach())
        found[use_cpu] = [float(loss) for loss in losses_of_loop]
        assert isinstance(accelerator.unwrap_model(model), Net)
    assert len(found[True]) == 8
    assert found[False] == pytest.approx(found[True], rel=1e-5, abs=1e-6)


# A second run


@pytest.mark.matrix
def test_a_second_run_of_a_model_adds_no_hook(tmp_path: Path) -> None:
    """Of FSDP by SPMD, which also another Trainer of the same model replaces."""
    script = """
from pathlib import Path
from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import small_trainer
model, counts = net(), []
for _ in range(3):
    trainer = small_trainer(Path("out"), parts={"model": model}, use_cpu=False, max_steps=2, fsdp="full_shard",
                            fsdp_config={"xla": True, "xla_fsdp_v2": True, "transformer_layer_cls_to_wrap": "Linear"})
    trainer.train()
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    counts.append([sum(len(getattr(each, kind)) for each in model.modules()) for kind in kinds])
    trainer.train()
    assert [sum(len(getattr(each, kind)) for each in model.modules()) for kind in kinds] == counts[-1]
print(counts)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[[3, 1, 1], [3, 1, 1], [3, 1, 1]]"
