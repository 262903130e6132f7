"""Rows of optimizers: those of installed packages and other devices, their options, and the form of their rates."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import ConfigurationError, Trainer, TrainingArguments
from hexloop.adapters.scheduler.torch.run_schedules import GreedyLR, rates_in_place
from hexloop.adapters.trainable.torch.optimizers import OPTIMIZERS, choose_optimizer
from tests.end_to_end.small.trainers import small_trainer

PACKAGE = """
import torch
from hexloop.adapters.trainable.torch.optimizers import Row, adam

class Mine(torch.optim.SGD):
    def __init__(self, params, lr: float = 0.1, betas=(0.9, 0.9), weight_decay: float = 0.0, twist: int = 1):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.betas, self.twist = betas, twist

ROW = Row(target="third_party:Mine", options=lambda spec: {"betas": spec.betas, "twist": 3}, package="third-party")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that names a class, a row, and a name that hexloop has itself."""
    information = tmp_path / "third_party-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    names = "mine = third_party:Mine\nmine_by_row = third_party:ROW\nsgd = third_party:Mine\n"
    (information / "entry_points.txt").write_text(f"[hexloop.optimizers]\n{names}")
    (tmp_path / "third_party.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("third_party", None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "twist"), [("mine", 2), ("mine_by_row", 2)])
def test_an_installed_package_adds_a_name(name: str, twist: int, tmp_path: Path) -> None:
    """By a class, which gets what its signature has, or by a row. `optim_args` are checked by the class."""
    given: dict[str, Any] = {"optim": name, "adam_beta1": 0.5, "weight_decay": 0.1, "optim_args": f"twist={twist}"}
    trainer = small_trainer(tmp_path, **given)
    trainer.train()
    optimizer: Any = trainer.optimizer
    assert (type(optimizer).__name__, optimizer.betas, optimizer.twist) == ("Mine", (0.5, 0.999), twist)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    with pytest.raises(ConfigurationError, match=r"Mine has no twisted; did you mean twist\?"):
        small_trainer(tmp_path, **{**given, "optim_args": "twisted=1"}).train()


@pytest.mark.usefixtures("installed")
def test_a_name_of_hexloop_is_not_replaced(tmp_path: Path) -> None:
    """A package that also calls something "sgd" changes nothing."""
    trainer = small_trainer(tmp_path, optim="sgd")
    trainer.train()
    assert type(trainer.optimizer) is torch.optim.SGD
    with pytest.raises(ConfigurationError, match="did you mean 'mine'"):
        TrainingArguments(str(tmp_path), optim="mines")


@pytest.mark.parametrize(
    ("name", "module", "kind", "device"),
    [
        ("adamw_torch_xla", "torch_xla.amp.syncfree", "AdamW", "xla"),
        ("adamw_torch_npu_fused", "torch_npu.optim", "NpuFusedAdamW", "npu"),
    ],
)
def test_optimizers_of_other_devices(
    name: str, module: str, kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the package there, a stand-in here, the class gets Adam's options; on a CPU it is refused."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        stand_in: Any = ModuleType(".".join(parts[:end]))
        stand_in.__path__ = []
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
        if end > 1:
            monkeypatch.setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], stand_in, raising=False)
    monkeypatch.setattr(sys.modules[module], kind, torch.optim.AdamW, raising=False)
    made = choose_optimizer(name, 0.1, (0.8, 0.9), 1e-7, "amsgrad=True", device)
    assert made == (torch.optim.AdamW, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-7, "amsgrad": True})
    with pytest.raises(ConfigurationError, match=f"is not supported on the device cpu: it runs on {device} only, as"):
        choose_optimizer(name, 0.1, (0.8, 0.9), 1e-7, None, "cpu")


def test_a_package_that_cannot_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that fails is not called missing; one without the class neither."""
    empty = ModuleType("optimi")
    monkeypatch.setitem(sys.modules, "optimi", empty)
    with pytest.raises(ConfigurationError, match=r"torch-optimi, which cannot be imported \(.*StableAdamW") as caught:
        choose_optimizer("stable_adamw", 0.1, (0.9, 0.99), 1e-8, None, "cpu")
    assert isinstance(caught.value, ImportError)
    monkeypatch.setitem(sys.modules, "optimi", None)
    with pytest.raises(ConfigurationError, match=r"which is not installed; run `pip install .*torch-optimi"):
        choose_optimizer("stable_adamw", 0.1, (0.9, 0.99), 1e-8, None, "cpu")


@pytest.mark.matrix
def test_a_package_does_not_configure_logs() -> None:
    """Grokadamw calls logging.basicConfig as it is imported; handlers and level stay those of the program."""
    program = (
        "import logging\n"
        "from hexloop.adapters.trainable.torch.optimizers import choose_optimizer\n"
        "root = logging.getLogger()\n"
        "before = [*root.handlers], root.level\n"
        "choose_optimizer('grokadamw', 0.1, (0.9, 0.99), 1e-8, None, 'cpu')\n"
        "assert ([*root.handlers], root.level) == before, root.handlers\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_only_the_chosen_package_is_imported() -> None:
    """Making torch's AdamW by name imports none of the packages."""
    roots = {str(row.target).partition(".")[0].partition(":")[0] for row in OPTIMIZERS.values() if row.extra}
    packages = sorted(roots - {"hexloop"} | {"lomo_optim"})  # whose classes hexloop's own are derived from
    program = (
        "import sys\n"
        "from hexloop.adapters.trainable.torch.optimizers import choose_optimizer\n"
        "choose_optimizer('adamw_torch', 0.1, (0.9, 0.99), 1e-8, None, 'cpu')\n"
        f"assert not sys.modules.keys() & {set(packages)!r}, sys.modules.keys() & {set(packages)!r}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Warmup in the optimizer


class Warm(torch.optim.SGD):
    """Counts the steps of its own warmup, as schedule-free optimizers do."""

    def __init__(self, params: Any, lr: float, warmup_steps: float = 0) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group["warmup_steps"] = warmup_steps


def test_a_warmup_ratio_becomes_steps(tmp_path: Path) -> None:
    """Of the length of the run, also if that follows from the data."""
    parts = {"optimizer_cls_and_kwargs": (Warm, {"lr": 0.1, "warmup_steps": 0.3})}
    trainer = small_trainer(tmp_path, parts=parts, num_train_epochs=2, warmup_steps=0.3)
    trainer.train()
    assert trainer.state.global_step == 8
    assert [group["warmup_steps"] for group in trainer.optimizer.param_groups] == [3, 3]


class OwnSchedule(Trainer):
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer)
        return self.lr_scheduler


def test_a_warmup_ratio_with_an_own_schedule_is_refused(tmp_path: Path) -> None:
    parts = {"optimizer_cls_and_kwargs": (Warm, {"lr": 0.1, "warmup_steps": 0.3})}
    with pytest.raises(ConfigurationError, match=r"warmup_steps=0.3 is a ratio of the run.*give a number of steps"):
        small_trainer(tmp_path, OwnSchedule, parts=parts).train()


# Rates that are tensors


class TensorRate(torch.optim.SGD):
    """Refuses to step with a rate that is not the tensor that it made, as torchao's optimizers do."""

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.5) -> None:
        super().__init__(params, lr=lr, momentum=momentum)
        for group in self.param_groups:
            group["lr"] = torch.tensor(lr)
        self.tensors = [group["lr"] for group in self.param_groups]

    def step(self, closure: Any = None) -> Any:
        """Step, if the rates are tensors."""
        if not all(isinstance(group["lr"], Tensor) for group in self.param_groups):
            raise RuntimeError("lr was changed to a non-Tensor object")
        return super().step(closure)


class WritesNumbers:
    """A scheduler of a user's, which assigns numbers."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.steps = optimizer, 0

    def step(self) -> None:
        """Lower the rate."""
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.steps)

    def get_last_lr(self) -> list[float]:
        """Return the rates."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load it."""
        self.steps = state["steps"]


EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}

SCHEDULES: dict[str, dict[str, Any]] = {
    "linear": {},
    "constant_with_warmup": {"warmup_steps": 3},
    "reduce_lr_on_plateau": {**EVALUATED, "lr_scheduler_kwargs": {"patience": 0, "threshold": 10.0}},
    "greedy": {**EVALUATED, "lr_scheduler_kwargs": {"patience": 0}},
}


@pytest.mark.parametrize("schedule", [*SCHEDULES, "of the user"])
def test_a_rate_that_is_a_tensor_is_filled(schedule: str, tmp_path: Path) -> None:
    """By every schedule, and when a run resumes; the rates are those of an optimizer with numbers."""
    from tests.end_to_end.small.models import net, rows

    def trained(kind: Any, folder: Path, resume_from: str | None = None) -> Any:
        model = net()
        own = SCHEDULES.get(schedule)
        if own is None:
            optimizer = kind(list(model.parameters()), lr=0.1, momentum=0.5)
            parts: dict[str, Any] = {"model": model, "optimizers": (optimizer, WritesNumbers(optimizer))}
            arguments: dict[str, Any] = {}
        else:
            parts = {"model": model, "optimizer_cls_and_kwargs": (kind, {"lr": 0.1, "momentum": 0.5})}
            arguments = {"lr_scheduler_type": schedule, **own}
        saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": 8}
        trainer = small_trainer(folder, parts={**parts, "eval_dataset": rows(4)}, **arguments, **saving)
        trainer.train(resume_from_checkpoint=resume_from)
        return trainer

    def rates(trainer: Any) -> list[float]:
        return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]

    tensors, numbers = trained(TensorRate, tmp_path / "a"), trained(torch.optim.SGD, tmp_path / "b")
    assert all(isinstance(group["lr"], Tensor) for group in tensors.optimizer.param_groups)
    assert rates(tensors) == pytest.approx(rates(numbers))
    assert len(set(rates(tensors))) > 1
    resumed = trained(TensorRate, tmp_path / "c", str(tmp_path / "a" / "checkpoint-3"))
    assert all(isinstance(group["lr"], Tensor) for group in resumed.optimizer.param_groups)
    assert rates(resumed) == rates(tensors)


def test_the_tensor_stays_the_same() -> None:
    """What assigns a number to it leaves the optimizer's own tensor, with that number."""
    optimizer = TensorRate([nn.Parameter(torch.ones(2))])
    with rates_in_place(optimizer):
        optimizer.param_groups[0]["lr"] = 0.025
    assert optimizer.param_groups[0]["lr"] is optimizer.tensors[0]
    assert optimizer.tensors[0].item() == pytest.approx(0.025)


def test_hexloops_greedy_schedule_fills_it() -> None:
    """The class that replaces transformers' where that is not installed."""
    optimizer = TensorRate([nn.Parameter(torch.ones(2))])
    schedule = GreedyLR(optimizer, patience=0)
    for metric in (1.0, 0.5, 0.25, 0.2):
        schedule.step(metric)
    assert optimizer.param_groups[0]["lr"] is optimizer.tensors[0]
    assert optimizer.tensors[0].item() == pytest.approx(schedule.get_last_lr()[0])
    assert optimizer.tensors[0].item() != pytest.approx(0.1)


def test_a_decay_in_optim_args_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The groups have their own."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        choose_optimizer("adamw_torch", 0.1, (0.9, 0.99), 1e-8, "weight_decay=0.1", "cpu")
    assert "weight_decay in optim_args has no effect" in caplog.text
