"""A process of a run on packed documents: trains by scenarios, and writes down the rows that it computed.

Run as a script: the folder for the results, and the scenarios as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from hexloop import Trainer, TrainingArguments
from hexloop.ports.batches import Padding
from tests.end_to_end.small.language_models import StatefulStream, Stream, documents, llama

WORLD = int(os.environ.get("WORLD_SIZE", "1"))

TOGETHER = 4
"""Rows of a batch of all processes, or micro-batches of an optimizer step."""

DATA = {"list": list, "stream": Stream, "stateful": StatefulStream}


class Recording(Trainer):
    """Records the rows of each micro-batch that this process trains on."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.seen: list[list[list[int]]] = []
        super().__init__(*given, **named)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        if model.training:
            self.seen.append(
                [] if isinstance(inputs, Padding) else [without_padding(row) for row in inputs["input_ids"]]
            )
        return super().compute_loss(model, inputs, *given, **named)


def without_padding(row: Any) -> list[int]:
    """Return the tokens of a row up to the last one that is not 0, as no document ends with it."""
    tokens: list[int] = row.tolist()
    while tokens and tokens[-1] == 0:
        tokens.pop()
    return tokens


def run(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a process computes in a scenario."""
    by_tokens = "tokens_per_batch" in scenario["arguments"]
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=1 if by_tokens else TOGETHER // WORLD,
        gradient_accumulation_steps=TOGETHER // WORLD if by_tokens else 1,
        logging_steps=1,
        save_strategy="steps",
        save_steps=scenario.get("save_steps", 1000),
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        learning_rate=0.01,
        **scenario["arguments"],
    )
    data: Any = DATA[scenario.get("data", "list")]
    trainer = Recording(llama(), arguments, train_dataset=data(documents(41)))
    trainer.train(resume_from_checkpoint=scenario.get("from"))
    state = trainer.state
    return {
        "seen": trainer.seen,
        "losses": [entry["loss"] for entry in state.log_history if "loss" in entry],
        "steps": state.global_step,
        "epoch": state.epoch,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, place = os.environ.get("RANK", "0"), Path(sys.argv[1])
    found = {name: run(scenario, place / name) for name, scenario in json.loads(sys.argv[2]).items()}
    (place / f"rank-{rank}.json").write_text(json.dumps(found))
