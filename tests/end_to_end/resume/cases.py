"""Runs of every kind, and how each is interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hexloop import EarlyStoppingCallback, Trainer, TrainerCallback
from hexloop.app.callbacks import ExportableState
from hexloop.app.testing.recording import Cut, step_is
from hexloop.domain.events import AnyEvent, EpochEnded, PredictionStepEnded
from tests.covering import Choice
from tests.end_to_end.resume.data import DATA, NOISE, TRAINERS
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer

SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "linear": {},
    "cosine": {},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"power": 2.0, "lr_end": 1e-4},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {},
    "cosine_with_min_lr": {"min_lr": 1e-4},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 2},
    "reduce_lr_on_plateau": {"patience": 0, "threshold": 0.3},
    "greedy": {"patience": 0},
}

WAYS = ("cut", "stopped", "cut at the end of an epoch", "stopped in an evaluation", "cut twice")

FACTORS: Mapping[str, Sequence[Any]] = {
    "data": list(DATA),
    "workers": [0, 2],
    "augmentation": list(NOISE),
    "dropout": [0.0, 0.3],
    "accumulation": [1, 4],
    "schedule": list(SCHEDULES),
    "precision": ["fp32", "bf16", "fp16"],
    "early stopping": [False, True],
    "callback": [False, True],
    "way": WAYS,
}


def allowed(choice: Choice) -> bool:
    """Torchdata's loader does not save the random states of its workers, which augmentation uses."""
    stateful_loader = str(choice.get("data")).startswith("a stateful loader")
    return not (stateful_loader and choice.get("workers") == 2 and choice.get("augmentation", "none") != "none")


class EveryThirdStep(TrainerCallback, ExportableState):
    """Evaluates after every third step."""

    def __init__(self) -> None:
        self.seen = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen += 1
        control.should_evaluate = control.should_evaluate or self.seen % 3 == 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seen": self.seen}}


def make_trainer(case: Choice, folder: str) -> Trainer:
    """Return the case's Trainer, the same in any process."""
    callbacks: list[Any] = [EarlyStoppingCallback(2, 0.01)] if case["early stopping"] else []
    callbacks += [EveryThirdStep()] if case["callback"] else []
    trainer: Trainer = small_trainer(
        Path(folder),
        TRAINERS.get(case["data"], Trainer),
        {
            "model": net(case["dropout"]),
            "train_dataset": DATA[case["data"]](case["augmentation"]),
            "eval_dataset": rows(6, seed=1),
            "callbacks": callbacks,
        },
        max_steps=9 if case["accumulation"] == 1 else 5,
        gradient_accumulation_steps=case["accumulation"],
        dataloader_num_workers=case["workers"],
        dataloader_prefetch_factor=2 if case["workers"] else None,
        lr_scheduler_type=case["schedule"],
        lr_scheduler_kwargs=dict(SCHEDULES[case["schedule"]]),
        warmup_steps=2,
        learning_rate=0.02,
        bf16=case["precision"] == "bf16",
        fp16=case["precision"] == "fp16",
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps" if case["early stopping"] else "no",
        save_steps=2,
        logging_steps=3,
        metric_for_best_model="loss",
        load_best_model_at_end=case["early stopping"],
    )
    return trainer


class First:
    """The first event of a kind."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def __call__(self, event: AnyEvent) -> bool:
        return isinstance(event, self.kind)


def interruptions(case: Choice, number: int, last: int) -> list[tuple[Cut, bool]]:
    """Return where a case's run of `last` steps is interrupted, and whether it is stopped there or just ends."""
    step = 1 + number % (last - 1)
    ways: dict[str, list[tuple[Cut, bool]]] = {
        "cut": [(step_is(step), False)],
        "stopped": [(step_is(step), True)],
        "cut at the end of an epoch": [(First(EpochEnded), False)],
        "stopped in an evaluation": [(First(PredictionStepEnded), True)],
        "cut twice": [(step_is(min(step, last - 2)), False), (step_is(min(step, last - 2) + 1), False)],
    }
    return ways[case["way"]]
