"""What type checkers find of `wrong.py` where the names are imported from the modules that stand for transformers'."""

from __future__ import annotations

from torch import nn

from hexloop.transformers import Seq2SeqTrainingArguments, TrainingArguments
from hexloop.transformers.trainer import Trainer
from hexloop.transformers.trainer_callback import EarlyStoppingCallback, TrainerCallback, TrainerState
from hexloop.transformers.trainer_utils import EvalPrediction

arguments = TrainingArguments("out")
trainer = Trainer(nn.Linear(1, 1), arguments)

TrainingArguments("out", lerning_rate=1e-3)  # type: ignore[call-arg]  # reportCallIssue
TrainingArguments("out", learning_rate="fast")  # type: ignore[arg-type]  # reportArgumentType
Seq2SeqTrainingArguments("out", save_strategy="sometimes")  # type: ignore[arg-type]  # reportArgumentType
Trainer(nn.Linear(1, 1), arguments, train_datset=[])  # type: ignore[call-arg]  # reportCallIssue
Trainer(nn.Linear(1, 1), arguments, callbacks=[EarlyStoppingCallback("3")])  # type: ignore[arg-type]  # reportArgumentType
arguments.max_steps = 2.5  # type: ignore[assignment]  # reportAttributeAccessIssue
print(arguments.lerning_rate)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(trainer.modl)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
trainer.trian()  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(TrainerState().global_stp)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
TrainerCallback().on_step_ended()  # type: ignore[attr-defined]  # reportAttributeAccessIssue
EvalPrediction(predictions=[1])  # type: ignore[call-arg]  # reportCallIssue
