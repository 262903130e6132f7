"""One error a line, which pyright and mypy find.

`# type: ignore[code]` is what mypy reports: `make types` fails where it reports nothing. What pyright reports follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hexloop import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    SFTConfig,
    SFTTrainer,
    Trainer,
    TrainingArguments,
)


class Net(nn.Linear):
    width: int = 4


@dataclass
class Further(TrainingArguments):
    beta: float = 0.1


arguments = TrainingArguments("out")
trainer = Trainer(Net(1, 1), arguments)

# A misspelt argument
TrainingArguments("out", lerning_rate=1e-3)  # type: ignore[call-arg]  # reportCallIssue
Seq2SeqTrainingArguments("out", predict_with_generation=True)  # type: ignore[call-arg]  # reportCallIssue
SFTConfig("out", pakcing=True)  # type: ignore[call-arg]  # reportCallIssue
Further("out", betta=0.1)  # type: ignore[call-arg]  # reportCallIssue
Trainer(Net(1, 1), arguments, train_datset=[])  # type: ignore[call-arg]  # reportCallIssue
Seq2SeqTrainer(Net(1, 1), train_datset=[])  # type: ignore[call-arg]  # reportCallIssue
SFTTrainer("gpt2", train_datset=[])  # type: ignore[call-arg]  # reportCallIssue

# A wrong type
TrainingArguments("out", learning_rate="fast")  # type: ignore[arg-type]  # reportArgumentType
TrainingArguments("out", max_steps=2.5)  # type: ignore[arg-type]  # reportArgumentType
Seq2SeqTrainingArguments("out", generation_num_beams="4")  # type: ignore[arg-type]  # reportArgumentType
SFTConfig("out", max_length="long")  # type: ignore[arg-type]  # reportArgumentType
Further("out", beta="x")  # type: ignore[arg-type]  # reportArgumentType
Trainer(Net(1, 1), {"output_dir": "out"})  # type: ignore[arg-type]  # reportArgumentType
arguments.learning_rate = "fast"  # type: ignore[assignment]  # reportAttributeAccessIssue

# A wrong choice
TrainingArguments("out", save_strategy="sometimes")  # type: ignore[arg-type]  # reportArgumentType
TrainingArguments("out", eval_strategy="best")  # type: ignore[arg-type]  # reportArgumentType
TrainingArguments("out", lr_scheduler_type="cosinus")  # type: ignore[arg-type]  # reportArgumentType
TrainingArguments("out", journal="all")  # type: ignore[arg-type]  # reportArgumentType
Further("out", save_strategy="sometimes")  # type: ignore[arg-type]  # reportArgumentType
arguments.save_strategy = "sometimes"  # type: ignore[assignment]  # reportAttributeAccessIssue

# An unknown attribute
print(arguments.lerning_rate)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(trainer.modl)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
trainer.trian()  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(Trainer(model=3).model.width)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
