"""Runs of many optimizers in one process, or in several that train together.

`python -m tests.end_to_end.optimizers.program FOLDER RUNS` with RUNS as JSON: a list of {"id", "name", "how"}, where
`how` is "hexloop", "resume", "reproduce", "transformers" or "by hand". The results are in FOLDER/rank-<rank>.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from tests.end_to_end.optimizers.cases import CASES, GIVEN

STEPS, SAVED_AT, BATCH = int(GIVEN["max_steps"]), 10, 4


class Words(nn.Module):
    """(batch, 5) tokens -> (batch, 64). Its matrices have 5120 elements, as quantised state starts at 4096."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 64)
        self.inner = nn.Linear(64, 80)
        self.norm = nn.LayerNorm(80)
        self.outer = nn.Linear(80, 64, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error and the outputs."""
        out = self.outer(self.norm(torch.tanh(self.inner(self.embedding(tokens).mean(1)))))
        return {"loss": mse_loss(out, labels), "logits": out}


def words() -> nn.Module:
    """Return the model, always with the same weights."""
    torch.manual_seed(0)
    return Words()


def rows(count: int = 48) -> list[dict[str, Tensor]]:
    """Return samples of the data set."""
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 80, (count, 5), generator=source)
    labels = torch.randn(count, 64, generator=source)
    return [{"tokens": tokens[number], "labels": labels[number]} for number in range(count)]


def digest(tensors: dict[str, Tensor]) -> str:
    """Return a digest of tensors, by name, bit by bit."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def trained(folder: Path, name: str, how: str) -> dict[str, Any]:
    """Train by a Trainer; return the losses, and digests of the weights and of the optimizer's last saved state."""
    library = __import__("transformers" if how == "transformers" else "hexloop")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    arguments: dict[str, Any] = {
        "optim": name,
        "per_device_train_batch_size": BATCH // world,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no" if how in ("transformers", "reproduce") else "steps",
        "save_steps": SAVED_AT,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        **GIVEN,
        **CASES[name].arguments,
        **({"reproduce": "transformers"} if how == "reproduce" else {}),
    }
    args = library.TrainingArguments(output_dir=str(folder), **arguments)
    trainer = library.Trainer(model=words(), args=args, train_dataset=rows())
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED_AT}") if how == "resume" else None)
    state = folder / f"checkpoint-{STEPS}" / "optimizer.safetensors"
    return {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "rates": [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry],
        "weights": digest(trainer.model.state_dict()),
        "state": hashlib.sha256(state.read_bytes()).hexdigest() if state.exists() else "",
        "class": f"{type(trainer.optimizer).__module__}.{type(trainer.optimizer).__qualname__}",
    }


def stepped_by_hand(name: str) -> dict[str, Any]:
    """Train by a plain loop with the original class: mean loss, norm clipped at 1.

    The rate falls linearly to 0, unless the row says that it is constant.
    """
    model, data = words(), rows()
    decayed = {"embedding.weight", "inner.weight", "outer.weight"}
    groups = [
        {"params": [each for key, each in model.named_parameters() if key in decayed], "weight_decay": 0.05},
        {"params": [each for key, each in model.named_parameters() if key not in decayed], "weight_decay": 0.0},
    ]
    make = CASES[name].by_hand
    assert make is not None
    optimizer = make(groups)
    if "bitsandbytes" in type(optimizer).__module__:
        optimizer.mng = object.__new__(type(optimizer.mng))  # the global one knows parameters by ids, which come again
        optimizer.mng.initialize()
        optimizer.mng.override_config(model.get_parameter("embedding.weight"), "optim_bits", 32)
    is_constant = CASES[name].arguments.get("lr_scheduler_type") == "constant"
    if hasattr(optimizer, "train"):
        optimizer.train()
    losses = []
    for step in range(STEPS):
        batch = [data[(step * BATCH + number) % len(data)] for number in range(BATCH)]
        for group in optimizer.param_groups:
            factor = 1 if is_constant else 1 - step / STEPS
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(torch.tensor(GIVEN["learning_rate"]) * factor)
            else:
                group["lr"] = GIVEN["learning_rate"] * factor
        loss = model(*(torch.stack([row[key] for row in batch]) for key in ("tokens", "labels")))["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    return {"losses": losses, "weights": digest(model.state_dict())}


def main(folder: Path, runs: list[dict[str, str]]) -> None:
    """Run one after another; an error is the result of its run."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for each in runs:
        try:
            if each["how"] == "by hand":
                results[each["id"]] = stepped_by_hand(each["name"])
            else:
                where = folder / (each["name"] if each["how"] in ("hexloop", "resume") else each["id"])
                results[each["id"]] = trained(where, each["name"], each["how"])
        except Exception as error:
            results[each["id"]] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
    rank = os.environ.get("RANK", "0")
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
