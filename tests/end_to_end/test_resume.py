"""A resumed run is bitwise equal to an uninterrupted one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from hexloop import EarlyStoppingCallback, Trainer
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.errors import CheckpointError
from hexloop.domain.events import StepEnded
from tests.contracts.optimizers import KeepingInGroups
from tests.end_to_end.small.documents import documents_of
from tests.end_to_end.small.models import Net, Noisy, Stream, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.warm_python import warm_python

STEPS = 8

Case = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def parts(**further: Any) -> dict[str, Any]:
    return {"model": net(0.3), "train_dataset": Noisy(22), "eval_dataset": rows(6), **further}


def half() -> float:
    return 0.5


def with_cycled_momentum() -> dict[str, Any]:
    """Return torch's OneCycleLR, which changes the momentum, too."""
    model = net(0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS)
    return parts(model=model, optimizers=(optimizer, schedule))


CASES: dict[str, Case] = {
    "an optimizer that keeps its state in its groups": (
        {"max_steps": STEPS},
        lambda: parts(optimizer_cls_and_kwargs=(KeepingInGroups, {"lr": 0.05, "signals": [half]})),
    ),
    "a momentum that a schedule cycles": ({"max_steps": STEPS}, with_cycled_momentum),
    "dropout, augmentation, accumulation with a partial window": (
        {"gradient_accumulation_steps": 2, "max_steps": STEPS, "logging_steps": 3},
        parts,
    ),
    "evaluation and logs of different rhythms": (
        {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 2, "max_steps": STEPS},
        parts,
    ),
    "evaluation and logs by epoch": (
        {"eval_strategy": "epoch", "logging_strategy": "epoch", "num_train_epochs": 2, "save_total_limit": 3},
        lambda: parts(train_dataset=Noisy(14)),
    ),
    "data of unknown length": ({"max_steps": STEPS}, lambda: parts(train_dataset=Stream(14))),
    "data of unknown length in workers": (
        {"max_steps": 5, "dataloader_num_workers": 1},
        lambda: parts(train_dataset=Stream(14)),
    ),
    "workers and keyed augmentation": ({"max_steps": 5, "dataloader_num_workers": 2}, parts),
    "loss scaling": ({"fp16": True, "max_steps": STEPS}, parts),
    "reduced precision": ({"bf16": True, "max_steps": STEPS}, parts),
    "a schedule that follows a metric": (
        {
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.5},
            "eval_strategy": "steps",
            "eval_steps": 1,
            "metric_for_best_model": "loss",
            "max_steps": STEPS,
        },
        parts,
    ),
    "warm-up, decay, clipping": (
        {"warmup_steps": 3, "weight_decay": 0.1, "max_grad_norm": 0.5, "lr_scheduler_type": "cosine",
         "max_steps": STEPS},
        parts,
    ),
    "momentum": ({"optim": "sgd", "optim_args": "momentum=0.9,nesterov=True", "max_steps": STEPS}, parts),
    "a torch scheduler": ({"max_steps": STEPS}, lambda: with_torch_scheduler(net(0.3))),
    "the best model at the end": (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "max_steps": STEPS,
         "learning_rate": 0.5, "save_total_limit": 2},
        parts,
    ),
    "order by length": (
        {"train_sampling_strategy": "group_by_length", "length_column_name": "long", "max_steps": STEPS},
        lambda: parts(train_dataset=[{**row, "long": index % 5} for index, row in enumerate(rows(22))]),
    ),
    "balanced micro-batches": (
        {"train_sampling_strategy": "batch_rebalance", "length_column_name": "long", "gradient_accumulation_steps": 2,
         "max_steps": STEPS},
        lambda: parts(train_dataset=[{**row, "long": 1 + index % 5} for index, row in enumerate(rows(22))]),
    ),
    "token counts": ({"include_num_input_tokens_seen": "all", "max_steps": 4}, parts),
}  # fmt: skip


def with_torch_scheduler(model: Net) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return parts(model=model, optimizers=(optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)))


def trainer_of(folder: Path, case: Case, kind: type[Trainer] = Trainer) -> Any:
    given, make = case
    return small_trainer(folder, kind, make(), **{"save_strategy": "steps", "save_steps": 1, **given})


def assert_same_end(one: Trainer, other: Trainer) -> None:
    assert same_weights(weights(one), weights(other))
    assert history(one) == history(other)
    assert one.state.global_step == other.state.global_step
    assert one.state.best_metric == other.state.best_metric
    assert one.state.best_global_step == other.state.best_global_step


def cut_after(trainer: Trainer, step: int) -> None:
    """Train, and drop the run once the checkpoint of that step is published."""
    with_events = trainer.stream()
    for event in with_events:
        if type(event).__name__ == "CheckpointPublished" and event.step == step:
            break
    with_events.close()


def in_memory(case: Case) -> Case:
    """Return the same case with its checkpoints in memory, in `given`."""
    given, make = case
    storage = MemoryStorage()
    return given, lambda: {**make(), "storage": storage}


def resume_everywhere(folder: Path, case: Case, kind: type[Trainer] = Trainer, steps: int | None = None) -> None:
    """Interrupt the run after each of its steps (or the first few), and compare each resumed run."""
    whole = trainer_of(folder, in_memory(case), kind)
    whole.train()
    assert whole.state.global_step > 2
    for step in range(1, (steps or whole.state.global_step) + 1):
        cut = in_memory(case)
        cut_after(trainer_of(folder, cut, kind), step)
        torch.rand(17)
        resumed = trainer_of(folder, cut, kind)
        resumed.train(resume_from_checkpoint=True)
        assert_same_end(resumed, whole)


@pytest.mark.one_in(len(CASES))
@pytest.mark.parametrize("name", CASES)
def test_a_run_resumes_exactly_at_every_step(tmp_path: Path, name: str) -> None:
    """Interrupted after any step and resumed, weights, log, best metric and step equal the uninterrupted run's."""
    resume_everywhere(tmp_path, CASES[name])


def test_patience_is_kept(tmp_path: Path) -> None:
    """Interrupted while early stopping counts and resumed, the run stops at the same step."""
    given = {
        "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "max_steps": STEPS,
        "learning_rate": 0.5, "metric_for_best_model": "loss",
    }  # fmt: skip
    case: Case = (given, lambda: parts(callbacks=[EarlyStoppingCallback(3)]))
    whole = trainer_of(tmp_path, in_memory(case))
    whole.train()

    stopped = whole.state.global_step
    assert 3 < stopped < STEPS
    resume_everywhere(tmp_path, case, steps=stopped - 1)


class PlainLoader(Trainer):
    """Loads its data with torch's own loader, which shuffles with torch's global generator."""

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator)


class OwnGenerator(Trainer):
    """Its sampler has its own generator, which continues from epoch to epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sampler = RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(3))

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=4, sampler=self.sampler, collate_fn=self.data_collator)


class LoaderGenerator(Trainer):
    """Its loader has a generator of its own."""

    def get_train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(self.train_dataset, 4, shuffle=True, generator=generator, collate_fn=self.data_collator)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [OwnGenerator, PlainLoader, LoaderGenerator])
def test_a_loader_of_the_users_resumes_exactly(tmp_path: Path, kind: type[Trainer]) -> None:
    """A user's loader with random augmentation resumes at its position, across epochs, too."""
    resume_everywhere(tmp_path, ({"num_train_epochs": 3}, lambda: parts(train_dataset=Noisy(10))), kind)


def test_a_run_resumes_from_a_checkpoint_by_its_path(tmp_path: Path) -> None:
    """An earlier checkpoint, named by its folder, is resumed although there are newer ones."""
    case: Case = ({"max_steps": 5}, parts)
    whole = trainer_of(tmp_path / "whole", case)
    whole.train()
    resumed = trainer_of(tmp_path / "other", case)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2") + os.sep)

    assert_same_end(resumed, whole)


def test_the_best_weights_are_found_in_an_earlier_folder(tmp_path: Path) -> None:
    """Resumed in another folder, a run ends with the best weights of the first folder, like an uninterrupted one."""
    given = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "greater_is_better": True}
    case: Case = ({**given, "max_steps": 5}, parts)
    whole = trainer_of(tmp_path / "whole", case)
    whole.train()
    assert whole.state.best_global_step < 4
    resumed = trainer_of(tmp_path / "other", case)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))

    assert_same_end(resumed, whole)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["loss scaling", "dropout, augmentation, accumulation with a partial window"])
def test_a_full_checkpoint_resumes_in_a_run_that_saves_the_model_only(tmp_path: Path, name: str) -> None:
    """Optimizer, random states and data position come from the checkpoint; the next checkpoint has only weights."""
    given, make = CASES[name]
    whole = trainer_of(tmp_path / "whole", (given, make))
    whole.train()
    resumed = trainer_of(tmp_path / "other", ({**given, "save_only_model": True}, make))
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))

    assert_same_end(resumed, whole)
    assert documents_of(tmp_path / "other" / f"checkpoint-{STEPS}").keys() == {"run_state", "run_setup"}


def test_a_model_only_checkpoint_resumes_in_a_run_that_saves_the_model_only(tmp_path: Path) -> None:
    """A model-only checkpoint resumes with a fresh optimizer; a run that saves full checkpoints refuses it."""
    case: Case = ({"max_steps": 4, "save_only_model": True}, parts)
    trainer_of(tmp_path, case).train()
    resumed = trainer_of(tmp_path, ({"max_steps": 6, "save_only_model": True}, parts))
    steps = [event.step for event in resumed.stream(resume_from_checkpoint=True) if type(event) is StepEnded]
    assert steps == [5, 6]
    with pytest.raises(
        CheckpointError,
        match=r"The checkpoint's optimizer does not fit.*it was saved with save_only_model=True; set that",
    ):
        trainer_of(tmp_path, ({"max_steps": 8}, parts)).train(resume_from_checkpoint=True)


def test_a_requested_checkpoint_resumes_exactly(tmp_path: Path) -> None:
    """A requested save, at a step without a scheduled one, contains everything."""
    case: Case = ({"max_steps": 6, "save_strategy": "no", "logging_steps": 4}, parts)
    whole = trainer_of(tmp_path / "whole", case)
    whole.train()
    cut = trainer_of(tmp_path / "cut", case)
    for event in cut.stream():
        if type(event) is StepEnded and event.step == 3:
            cut.request_save()
            cut.request_stop()
    resumed = trainer_of(tmp_path / "cut", case)
    resumed.train(resume_from_checkpoint=True)

    assert_same_end(resumed, whole)


def test_a_finished_run_resumes_with_more_steps(tmp_path: Path) -> None:
    """A finished run that is resumed with more steps trains only these."""
    short = trainer_of(tmp_path, ({"max_steps": 3, "lr_scheduler_type": "constant"}, parts))
    short.train()
    longer = trainer_of(tmp_path, ({"max_steps": 7, "lr_scheduler_type": "constant"}, parts))
    whole = trainer_of(tmp_path / "whole", ({"max_steps": 7, "lr_scheduler_type": "constant"}, parts))
    whole.train()
    steps = [event.step for event in longer.stream(resume_from_checkpoint=True) if type(event) is StepEnded]

    assert steps == [4, 5, 6, 7]
    assert same_weights(weights(longer), weights(whole))


FRESH = """
import json, sys
from pathlib import Path
from tests.end_to_end.small.trainers import history, weights
from tests.end_to_end.test_resume import CASES, trainer_of

trainer = trainer_of(Path(sys.argv[1]), CASES[sys.argv[2]])
trainer.train(resume_from_checkpoint=True)
values = {name: tensor.double().tolist() for name, tensor in weights(trainer).items()}
print(json.dumps({"history": history(trainer), "weights": values}))
"""


def test_it_resumes_exactly_in_a_fresh_process(tmp_path: Path) -> None:
    """A new process, given only the folder, gets the same numbers."""
    name = "dropout, augmentation, accumulation with a partial window"
    whole = trainer_of(tmp_path / "whole", CASES[name])
    whole.train()
    cut_after(trainer_of(tmp_path / "cut", CASES[name]), 3)
    fresh = subprocess.run(
        [warm_python(), "-c", FRESH, str(tmp_path / "cut"), name],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
        check=False,
    )

    assert fresh.returncode == 0, fresh.stderr
    found = json.loads(fresh.stdout)
    assert found["history"] == history(whole)
    assert found["weights"] == {name: tensor.double().tolist() for name, tensor in weights(whole).items()}
