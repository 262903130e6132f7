"""Checkpoints kept as test data: how they are made, loaded and continued.

    python -m tests.reference.kept_checkpoints make FOLDER [KIND ...]
    python -m tests.reference.kept_checkpoints load FOLDER KIND
    python -m tests.reference.kept_checkpoints continue FOLDER KIND OUTPUT

`make` trains each kind of run until it has written one checkpoint, and stores the digests of the state that a fresh
Trainer has after loading it, by rank, in FOLDER/KIND.json. `load` prints these digests. `continue` resumes, trains to
the end and prints the digests at the end with everything that was logged: run it with two versions of hexloop on one
machine and compare. Only public names of hexloop are used, so that the script runs with any version.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hexloop import EarlyStoppingCallback, ExportableState, Trainer, TrainerCallback, TrainingArguments

ROOT = Path(__file__).resolve().parents[2]
WORDS, WIDTH, LENGTH, ROWS, SAVED_AT, STEPS = 11, 8, 5, 45, 7, 12
CLOCK = ("runtime", "per_second")
"""Endings of logged names whose values depend on the clock."""

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "fp32": (1, {"max_grad_norm": 0.5, "weight_decay": 0.1}),
    "bf16_plateau": (
        1,
        {"bf16": True, "lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}},
    ),
    "greedy": (1, {"lr_scheduler_type": "greedy"}),
    "ddp": (2, {}),
    "fsdp2": (2, {"fsdp": "full_shard", "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Linear"]}}),
    "zero2": (2, {"deepspeed": {"zero_optimization": {"stage": 2}}}),
}
"""The number of processes and the arguments of each kind of run, in addition to the usual ones."""


class Sentences(Dataset[Any]):
    """Sequences of five words."""

    def __init__(self, count: int) -> None:
        draw = torch.Generator().manual_seed(count)
        self.rows = torch.randint(1, WORDS, (count, LENGTH), generator=draw)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        return {"words": self.rows[index], "labels": self.rows[index].roll(1)}


class Reader(nn.Module):
    """Predicts each word from the words around it; a buffer, dropout and draws of numpy and Python."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(WIDTH, WORDS)
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor([1.5]))

    def forward(self, words: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits of shape (rows, 5, 11), and the mean loss."""
        hidden = self.words(words)
        hidden = hidden + torch.tanh(self.layer(self.dropout(hidden.roll(1, 1)))) * self.scale.to(hidden.dtype)
        if self.training:
            hidden = hidden * (1.0 + 0.01 * random.random() + 0.01 * float(np.random.rand()))
        logits = self.out(hidden)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), "logits": logits}


class Counting(TrainerCallback, ExportableState):
    """A callback with state: the number of steps that it has seen."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.seen = first

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seen += 1

    def state(self) -> dict[str, Any]:
        return {"args": {"first": self.first}, "attributes": {"seen": self.seen}}


class Inspecting(TrainerCallback):
    """Stores the digests of a trainer's state when training starts, and ends the run there if `stops`."""

    def __init__(self, stops: bool) -> None:
        self.stops = stops
        self.trainer: Any = None
        self.found: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.found = digests(self.trainer)
        control.should_training_stop = control.should_training_stop or self.stops


def trainer_for(kind: str, output: str, *callbacks: TrainerCallback, saves: bool = False) -> Trainer:
    """A Trainer over a fresh model."""
    further = KINDS[kind][1]
    processes = KINDS[kind][0]
    given: dict[str, Any] = {
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "per_device_train_batch_size": 4 // processes,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "learning_rate": 0.02,
        "warmup_steps": 0 if "lr_scheduler_type" in further else 3,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "eval_loss",
        "save_strategy": "steps" if saves else "no",
        "save_steps": SAVED_AT,
        "save_only_model": False,
        "optim": "adamw_torch",
        **further,
    }
    counting: Any = Counting()
    return Trainer(
        Reader(),
        TrainingArguments(output, **given),
        train_dataset=Sentences(ROWS),
        eval_dataset=Sentences(6),
        callbacks=[counting, EarlyStoppingCallback(50), *callbacks],
    )


def digests(trainer: Any) -> dict[str, str]:
    """A digest of each thing that a resumed run depends on, as this process holds it."""
    found: dict[str, Any] = {
        f"weights.{name}": tensor
        for name, tensor in {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}.items()
    }
    found |= _of_optimizer(trainer)
    found["python"] = [list(part) if isinstance(part, tuple) else part for part in random.getstate()]
    numpys: Any = np.random.get_state(legacy=True)
    found["numpy"] = [numpys[0], numpys[1].tolist(), *map(float, numpys[2:])]
    found["torch"] = torch.get_rng_state()
    state = trainer.state
    found["run"] = {
        "step": state.global_step,
        "epoch": state.epoch,
        "best": [state.best_metric, state.best_global_step],
        "log": _without_clock(state.log_history),
        "seen": next(each.seen for each in trainer.callback_handler.callbacks if isinstance(each, Counting)),
    }
    return {name: _digest(value) for name, value in found.items()}


def _of_optimizer(trainer: Any) -> dict[str, Any]:
    """The masters, moments and options of each group, and the rates; as those of one group where the options are equal.

    Version 0.1.0 made one group, with the parameters in the model's order, where nothing is decayed.
    """
    optimizer = getattr(trainer.model_wrapped, "optimizer", None) or trainer.optimizer
    zero = optimizer if hasattr(optimizer, "single_partition_of_fp32_groups") else None
    inner = getattr(optimizer, "optimizer", optimizer)
    options = [[group[name] for name in ("lr", "betas", "eps", "weight_decay")] for group in inner.param_groups]
    one = all(each == options[0] for each in options)
    states = [inner.state[each] for group in inner.param_groups for each in group["params"]]
    found: dict[str, Any] = {}
    if zero is not None:
        masters = list(zero.single_partition_of_fp32_groups)
        if one and len(masters) > 1:
            names = [name for name, value in states[0].items() if value.shape == masters[0].shape]
            joined = {name: _joined(trainer, zero, [state[name] for state in states]) for name in names}
            masters, states = [_joined(trainer, zero, masters)], [{**states[0], **joined}]
        found |= {f"masters.{number}": each for number, each in enumerate(masters)}
    elif one:
        states = [inner.state[each] for each in trainer.model.parameters() if each.requires_grad]
    for number, state in enumerate(states):
        found |= {f"moments.{number}.{name}": value for name, value in state.items()}
    found |= {f"group.{number}": each for number, each in enumerate(options[:1] if one else options)}
    rates = trainer.lr_scheduler.get_last_lr()
    return {**found, "schedule": rates[:1] if one and len(set(rates)) == 1 else rates}


def _joined(trainer: Any, zero: Any, own: list[Tensor]) -> Tensor:
    """This rank's part of the flat tensor of one group, from its parts of the flat tensors of several."""
    world = torch.distributed.get_world_size()
    pieces: dict[int, Tensor] = {}
    for part, group, offsets in zip(own, zero.bit16_groups, zero.round_robin_bit16_offsets, strict=True):
        parts = [torch.empty_like(part) for _ in range(world)]
        torch.distributed.all_gather(parts, part.detach().contiguous())
        whole = torch.cat(parts)
        pieces |= {id(each): whole[at : at + each.numel()] for each, at in zip(group, offsets, strict=True)}
    flat = torch.cat([pieces[id(each)] for each in trainer.model.parameters()])
    flat = functional.pad(flat, (0, -len(flat) % (2 * world)))
    return flat.chunk(world)[torch.distributed.get_rank()]


def _without_clock(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in entry.items() if not name.endswith(CLOCK)} for entry in log]


def _digest(value: Any) -> str:
    if isinstance(value, Tensor):
        tensor = value.detach()
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        data = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(f"{value.dtype}{tuple(tensor.shape)}".encode() + data).hexdigest()[:24]
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=float).encode()).hexdigest()[:24]


def make(kind: str, folder: Path) -> None:
    """Write the checkpoint of a kind to FOLDER/KIND. Called in each process of the run."""
    inspecting = Inspecting(stops=False)
    with tempfile.TemporaryDirectory() as own:
        output = Path(os.environ.get("KEPT_OUTPUT", own))
        trainer = trainer_for(kind, str(output), inspecting, saves=True)
        inspecting.trainer = trainer
        trainer.train()
        if trainer.is_world_process_zero():
            shutil.rmtree(folder / kind, ignore_errors=True)
            shutil.copytree(output / f"checkpoint-{SAVED_AT}", folder / kind / f"checkpoint-{SAVED_AT}")


def load(kind: str, folder: Path) -> dict[str, str]:
    """The digests of the state that a fresh Trainer of this process has after loading."""
    inspecting = Inspecting(stops=True)
    with tempfile.TemporaryDirectory() as own:
        inspecting.trainer = trainer_for(kind, os.environ.get("KEPT_OUTPUT", own), inspecting)
        for _ in inspecting.trainer.stream(resume_from_checkpoint=str(_checkpoint(kind, folder))):
            if inspecting.found:
                break
    return inspecting.found


def resume(kind: str, folder: Path, output: str) -> dict[str, Any]:
    """The digests at the end of a run that resumes from the checkpoint, with what it read and logged."""
    trainer: Any = trainer_for(kind, output)
    trainer.train(resume_from_checkpoint=str(_checkpoint(kind, folder)))
    return {
        **digests(trainer),
        "read": trainer.train_dataset.read,
        "logged": _without_clock(trainer.state.log_history),
    }


def _checkpoint(kind: str, folder: Path) -> Path:
    return (folder / kind / f"checkpoint-{SAVED_AT}").resolve()


def in_processes(command: str, folder: Path, kind: str, *further: str) -> list[Any]:
    """What the command prints in each process of a run of this kind, by rank."""
    processes = KINDS[kind][0]
    with socket.socket() as server, tempfile.TemporaryDirectory() as output:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.close()
        environment: Mapping[str, str] = {
            **os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes), "KEPT_OUTPUT": output,
        }  # fmt: skip
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.reference.kept_checkpoints", command, str(folder), kind, *further],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            outputs = [process.communicate(timeout=240) for process in started]
        finally:
            for process in started:
                process.kill()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]


def main() -> None:
    """Run a command; without RANK, of a kind that has several processes, in as many of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "load", "continue"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("further", nargs="*")
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.command == "make" and "KEPT_OUTPUT" not in os.environ:
        for kind in words.further or KINDS:
            in_processes("make", words.folder, kind)
            loaded = in_processes("load", words.folder, kind)
            lines = [json.dumps(each, indent=1, sort_keys=True) for each in loaded]
            (words.folder / f"{kind}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
        return
    kind, *output = words.further
    if "KEPT_OUTPUT" not in os.environ:
        for each in in_processes(words.command, words.folder, kind, *output):
            print(json.dumps(each, indent=1, sort_keys=True))
        return
    told: Any = None
    if words.command == "make":
        make(kind, words.folder)
    else:
        told = load(kind, words.folder) if words.command == "load" else resume(kind, words.folder, *output)
    print(json.dumps(told, default=float), flush=True)
    os._exit(0)  # torch's threads may abort an orderly end of the interpreter


if __name__ == "__main__":
    main()
