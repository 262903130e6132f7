"""A run of several processes that is small enough to repeat in many configurations; see `Training`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, field, frozen
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hexloop.adapters.storage.faults import Fault, FaultyStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.ports.storage import Storage
from tests.engines.processes import CONTEXT, free_port

PATIENCE = 240
WORDS, LONGEST, WIDTH = 31, 9, 24
CLOCK = ("runtime", "per_second")
"""Suffixes of logged values that depend on the clock."""


class Sentences(Dataset[Any]):
    """Sequences of 2 to 9 tokens, some without a label; each records which process read it."""

    def __init__(self, count: int) -> None:
        draw = torch.Generator().manual_seed(count)
        lengths = torch.randint(2, LONGEST + 1, (count,), generator=draw).tolist()
        self.rows = [torch.randint(1, WORDS, (length,), generator=draw) for length in lengths]
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        words = self.rows[index]
        return {"words": words, "labels": torch.where(words % 5 == 0, -100, words)}


def padded(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collate samples to the length of the longest."""
    fill = {"words": 0, "labels": -100}
    return {name: nn.utils.rnn.pad_sequence([sample[name] for sample in samples], True, fill[name]) for name in fill}


class Reader(nn.Module):
    """Predicts each token from the token and the mean of all tokens; optionally with dropout."""

    def __init__(self, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(WIDTH, WORDS)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, words: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits of shape (rows, tokens, 31), and the mean loss over the labels that count."""
        hidden = self.words(words)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(self.dropout(hidden)))
        logits = self.out(hidden)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@frozen
class Training:
    """The setup of a run.

    size: samples per optimizer step, for any number of processes. batch: samples per process and micro-batch.
    accumulates: `gradient_accumulation_steps`, if it does not follow from `size`.
    arguments: additional arguments of the run; of_rank_1: those of rank 1 only.
    faults: storage faults on rank 1 only. folder_of_rank_1: its output folder, as on another machine.
    path_of_rank_1: prepended to its import path.
    engine: the class of the wrapped model. callbacks: classes; their instances get the trainer, too.
    afterwards: "module:function", which each process calls with its trainer after training.
    kind: "module:class" of the trainer. saves: whether `save_model` is called at the end.
    """

    processes: int = 1
    rows: int = 45
    held_out: int = 13
    size: int = 8
    batch: int = 2
    accumulates: int | None = None
    depth: int = 2
    dropout: float = 0.0
    resume: str | None = None
    engine: str = "DistributedDataParallel"
    callbacks: tuple[type[Any], ...] = ()
    afterwards: Callable[[Any], None] | None = None
    kind: type[Any] | None = None
    saves: bool = True
    arguments: Mapping[str, Any] = field(factory=dict)
    of_rank_1: Mapping[str, Any] = field(factory=dict)
    faults: tuple[Fault, ...] = ()
    folder_of_rank_1: str | None = None
    path_of_rank_1: str | None = None

    def of(self, processes: int, **changes: Any) -> Training:
        """Return the same setup for another number of processes."""
        return evolve(self, processes=processes, **changes)

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.accumulates or self.size // (self.batch * self.processes)


@frozen
class Trained:
    """The result: logs, weights, and the samples that each process read, in order."""

    history: list[dict[str, float]]
    weights: dict[str, Tensor]
    read: list[list[int]]

    @property
    def logged(self) -> list[dict[str, float]]:
        """Return the logs without values that depend on the clock."""
        return [{name: value for name, value in entry.items() if not name.endswith(CLOCK)} for entry in self.history]


def run(training: Training, folder: Path) -> Trained:
    """Train in `training.processes` real processes. Raises AssertionError with the rank if one of them fails."""
    reported = _in_processes(training, folder)
    for rank, said in enumerate(reported):
        if isinstance(said, str):
            raise AssertionError(f"rank {rank}: {said}")
    weights: dict[str, Tensor] = {}
    for file in (folder / "weights").glob("*.safetensors"):
        weights |= load_file(file)
    return Trained(reported[0]["history"], weights, [said["read"] for said in reported])


def ended(training: Training, folder: Path) -> list[str]:
    """Return the error of each process, by rank; empty if it succeeded."""
    return [said if isinstance(said, str) else "" for said in _in_processes(training, folder)]


def _in_processes(training: Training, folder: Path) -> list[Any]:
    port, pipes, processes = free_port(), [], []
    for rank in range(training.processes):
        reader, writer = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_in_process, args=(training, str(folder), rank, port, writer), daemon=False)
        process.start()
        writer.close()
        pipes.append(reader)
        processes.append(process)
    try:
        return [_told(reader) for reader in pipes]
    finally:
        for process in processes:
            process.join(PATIENCE)
            process.kill()


def _told(reader: Any) -> Any:
    if not reader.poll(PATIENCE):
        return "stuck"
    try:
        return reader.recv()
    except EOFError:
        return "died"


def _in_process(training: Training, folder: str, rank: int, port: int, writer: Any) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(training.processes), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(training.processes),
    )  # fmt: skip
    torch.set_num_threads(1)
    if rank == 1 and training.path_of_rank_1 is not None:
        sys.path.insert(0, training.path_of_rank_1)
    try:
        writer.send(_train(training, folder))
    except BaseException as error:
        writer.send(f"{type(error).__name__}: {error}")
    finally:
        writer.close()
        os._exit(0)  # threads of torch may abort a normal exit of the interpreter


def _train(training: Training, folder: str) -> dict[str, Any]:
    from hexloop import Trainer, TrainingArguments

    given: dict[str, Any] = {
        "num_train_epochs": 3, "logging_steps": 1, "learning_rate": 0.01, "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "save_strategy": "no", **training.arguments,
        **(training.of_rank_1 if os.environ["RANK"] == "1" else {}),
    }  # fmt: skip
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=training.batch,
        per_device_eval_batch_size=3,
        gradient_accumulation_steps=training.accumulation,
        **given,
    )
    storage: Storage | None = None
    if os.environ["RANK"] == "1" and (training.faults or training.folder_of_rank_1):
        storage = FaultyStorage(LocalStorage(training.folder_of_rank_1 or folder), training.faults)
    data = Sentences(training.rows)
    model = Reader(training.depth, training.dropout)
    trainer: Any = (training.kind or Trainer)(
        model,
        arguments,
        padded,
        data,
        Sentences(training.held_out),
        compute_metrics=lambda found: {
            "right": float((found.predictions.argmax(-1) == found.label_ids).mean()),
            "rows": len(found.label_ids),
        },
        storage=storage,
    )
    for kind in training.callbacks:
        trainer.add_callback(_told_of(kind, trainer))
    trainer.train(resume_from_checkpoint=training.resume)
    assert arguments.world_size == training.processes
    expected = type(trainer.model).__name__ if training.processes == 1 else training.engine
    assert type(trainer.model_wrapped).__name__ == expected, type(trainer.model_wrapped)
    if training.afterwards is not None:
        training.afterwards(trainer)
    if training.saves:
        trainer.save_model(f"{folder}/weights")
    return {"history": trainer.state.log_history, "read": data.read}


def _told_of(kind: type[Any], trainer: Any) -> Any:
    """Return a callback of the class that has its trainer."""
    callback = kind()
    callback.trainer = trainer
    return callback


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of all weights, relative to the norm of the weights."""
    difference = sum(float((one[name] - other[name]).double().square().sum()) for name in one)
    return float((difference / sum(float(value.double().square().sum()) for value in one.values())) ** 0.5)


def fresh(folder: Path) -> Path:
    """Return the folder, emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
