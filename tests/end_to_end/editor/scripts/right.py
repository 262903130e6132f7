"""What users write, in which type checkers find no error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_type

import torch
from torch import nn
from transformers.trainer_utils import IntervalStrategy

import hexloop
from hexloop import (
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    SFTConfig,
    SFTTrainer,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from hexloop.transformers import AutoModel, trainer_utils
from hexloop.transformers import Trainer as StandIn
from hexloop.transformers.trainer_pt_utils import LabelSmoother
from hexloop.transformers.training_args import TrainingArguments as ArgumentsOfStandIn


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"logits": self.linear(x)}


@dataclass
class Further(TrainingArguments):
    """Arguments of a project, as users of transformers write them."""

    beta: float = 0.1
    learning_rate: float = 1e-3
    names: list[str] = field(default_factory=list)


class Weighted(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return model(**inputs)["logits"].mean()


class Typed(Trainer[Net]):
    def width(self) -> int:
        return self.model.width


class Noting(TrainerCallback):
    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_save = state.global_step == 3


def make() -> Net:
    return Net(8)


arguments = TrainingArguments(
    "out",
    save_strategy="epoch",
    eval_strategy=hexloop.IntervalStrategy.STEPS,
    logging_strategy=IntervalStrategy.NO,
    lr_scheduler_type="cosine",
    optim="adamw_torch",
    report_to=["tensorboard"],
    fsdp=True,
    log_level="info",
    on_nonfinite="stop",
    warmup_steps=0.1,
    push_to_hub=False,
    bf16=torch.cuda.is_available(),
)
arguments.learning_rate = 5e-4
arguments.save_strategy = "best"
assert_type(arguments.learning_rate, float)
assert_type(arguments.train_batch_size, int)

further = Further("out", beta=0.2, seed=3, save_strategy="no")
assert_type(further, Further)
assert_type(further.names, list[str])

assert_type(Trainer(Net(), arguments).model.width, int)
assert_type(Trainer(model=Net(), args=further, train_dataset=[1]).model, Net)
assert_type(Trainer(model_init=make).model, Net)
assert_type(Weighted(Net(), arguments).model, Any)
assert_type(Typed(Net(), arguments).width(), int)
assert_type(Seq2SeqTrainer(Net(), Seq2SeqTrainingArguments("out", predict_with_generate=True)).model, Net)
assert_type(SFTTrainer("gpt2", SFTConfig("out", packing=True, packing_strategy="wrapped")).model, Any)

trainer = Trainer(Net(), arguments, callbacks=[Noting(), EarlyStoppingCallback(3)])
assert_type(trainer.model, Net)
assert_type(trainer.train().global_step, int)
assert_type(trainer.hyperparameter_search({"learning_rate": [1e-3, 1e-4]}).hyperparameters, dict[str, Any])
assert_type(trainer.hyperparameter_search(direction=["minimize", "maximize"])[0].run_id, str)
for event in trainer.stream():
    if isinstance(event, hexloop.Logged):
        assert_type(event.step, int)


def untyped(trainer: Trainer) -> Any:
    """A Trainer of any model, whose attributes may be any."""
    return trainer.model.whatever


compute: Callable[[hexloop.EvalPrediction], dict[str, float]] = lambda p: {"mean": float(p.predictions.mean())}  # noqa: E731
Trainer(Net(), arguments, compute_metrics=compute, optimizers=(torch.optim.SGD(Net().parameters(), 0.1), None))

assert_type(StandIn(Net(), ArgumentsOfStandIn("out", save_strategy="no")).model, Net)
assert_type(trainer_utils.IntervalStrategy("no"), hexloop.IntervalStrategy)
assert_type(AutoModel.from_pretrained("gpt2"), Any)
LabelSmoother(epsilon=0.1)
