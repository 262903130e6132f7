"""A process of a run with sharded data: trains and evaluates by scenarios, and writes down what it read.

Run as a script: the folder for the results, and the scenarios as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from hexloop import Trainer, TrainerCallback, TrainingArguments
from hexloop.ports.batches import Padding

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
GLOBAL_BATCH = 8
WIDEST = 7


def row(number: int) -> dict[str, Any]:
    """Return a sample whose width depends on its index."""
    generator = torch.Generator().manual_seed(number)
    width = 1 + number * 5 % WIDEST
    return {"ids": number, "x": torch.randn(width, generator=generator), "labels": number % 3}


class Rows(Dataset[Any]):
    """Samples by index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return row(number)


class Stream(IterableDataset[Any]):
    """The same samples as a stream; each loader worker reads every n-th one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def order(self) -> list[int]:
        return list(range(self.count))

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        mine = slice(None) if info is None else slice(info.id, None, info.num_workers)
        return map(row, self.order()[mine])


class ShuffledStream(Stream):
    """A stream in an order that is drawn when it is opened."""

    def order(self) -> list[int]:
        return random.sample(range(self.count), self.count)


class StatefulStream(Stream):
    """A stream with a state_dict."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        mine = self.order() if info is None else self.order()[info.id :: info.num_workers]
        while self.read < len(mine):
            self.read += 1
            yield row(mine[self.read - 1])
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class OwnPart(Stream):
    """A stream that shards itself by rank."""

    def order(self) -> list[int]:
        return super().order()[int(os.environ.get("RANK", "0")) :: WORLD]


class WithoutLength(Stream):
    """A stream without a length."""

    def __len__(self) -> int:
        raise TypeError("It has no length.")


STREAMS = {
    "without length": WithoutLength,
    "stream": Stream,
    "shuffled": ShuffledStream,
    "stateful": StatefulStream,
    "own part": OwnPart,
}


def collate(rows: list[Any]) -> dict[str, Tensor]:
    """Collate rows to the width of the widest."""
    width = max(len(each["x"]) for each in rows)
    x = torch.stack([nn.functional.pad(each["x"], (0, width - len(each["x"]))) for each in rows])
    return {"x": x} | {name: torch.tensor([each[name] for each in rows]) for name in ("ids", "labels")}


class Model(nn.Module):
    """Predicts a class for each row, and a value for each of its positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(WIDEST, 16), nn.Linear(16, 3)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Any]:
        wide = nn.functional.pad(x, (0, WIDEST - x.shape[1]))
        logits = self.second(torch.tanh(self.first(wide)))
        if self.training and os.environ.get("DROPS"):
            logits = self.dropout(logits)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits, "positions": x * 2, "more": (wide.sum(-1), logits > 0)}


class Recording(Trainer):
    """Records the rows that are trained on by this process, batch by batch."""

    def __init__(self, scenario: dict[str, Any], **parts: Any) -> None:
        self.scenario = scenario
        self.seen: list[list[int]] = []
        super().__init__(**parts)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        if self.is_in_train and model.training:
            self.seen.append([] if isinstance(inputs, Padding) else inputs["ids"].tolist())
        return super().compute_loss(model, inputs, *given, **named)


class WithOwnLoader(Recording):
    """Overrides the loaders with torch's own."""

    def get_train_dataloader(self) -> Any:
        size = self.args.per_device_train_batch_size
        return self.loader(self.train_dataset, self.scenario.get("shuffle", True), size)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.loader(self.eval_dataset, False, self.args.per_device_eval_batch_size)

    def loader(self, data: Any, shuffle: bool, size: int) -> Any:
        kind, workers = self.scenario["data"], self.scenario.get("workers", 0)
        if kind == "list of batches":
            rows = list(map(row, range(len(data))))
            return [collate(rows[first : first + size]) for first in range(0, len(rows), size)]
        sampler: Any = None
        if kind == "distributed" and WORLD > 1:
            sampler = DistributedSampler(data, WORLD, int(os.environ["RANK"]), shuffle=shuffle)
        shuffles = shuffle and sampler is None and kind not in STREAMS
        return DataLoader(data, size, shuffles, sampler, collate_fn=collate, num_workers=workers)


class WithOwnStep(Recording):
    """Overrides training_step without support for padding."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = model(**inputs)["loss"]
        self.accelerator.backward(loss)
        return cast(Tensor, loss.detach())


class StopAt(TrainerCallback):
    """Stops the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def trainer_for(scenario: dict[str, Any], folder: Path, **parts: Any) -> Recording:
    """Return the trainer of a scenario."""
    kind, count = scenario["data"], scenario.get("rows", 45)
    own = kind in ("loader", "list of batches", "distributed")
    train = STREAMS[kind](count) if kind in STREAMS else Rows(count)
    held_out = scenario.get("held_out", 21)
    evaluation = Rows(held_out) if kind not in STREAMS or kind == "shuffled" else STREAMS[kind](held_out)
    size = GLOBAL_BATCH if scenario.get("splits") else GLOBAL_BATCH // WORLD
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=size,
        per_device_eval_batch_size=scenario.get("eval_batch", 2),
        num_train_epochs=scenario.get("epochs", 2),
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        learning_rate=0.01,
        dataloader_num_workers=scenario.get("workers", 0),
        accelerator_config={"split_batches": bool(scenario.get("splits"))} | scenario.get("accelerator", {}),
        include_for_metrics=["inputs", "loss"],
        label_names=["labels"],
        **scenario.get("arguments", {}),
    )
    kinds = {"own step": WithOwnStep, "own loader": WithOwnLoader}
    return kinds.get("own loader" if own else scenario.get("trainer", ""), Recording)(
        scenario,
        model=Model(),
        args=args,
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=collate,
        **parts,
    )


def plain(value: Any) -> Any:
    """Convert arrays to lists, at any depth."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def measured(seen: list[Any]) -> Any:
    """Return a compute_metrics function that records its input."""

    def compute(prediction: Any, compute_result: bool = True) -> dict[str, float]:
        given = (prediction.predictions, prediction.label_ids, prediction.inputs, prediction.losses)
        seen.append(plain(given))
        return {"rows": float(sum(len(each[1]) for each in seen))}

    return compute


def run(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a process reads and computes in a scenario."""
    given: list[Any] = []
    stop = scenario.get("stop_at")
    parts: dict[str, Any] = {"compute_metrics": measured(given)}
    if stop is not None and not scenario.get("from"):
        trainer = trainer_for(scenario, folder, callbacks=[StopAt(stop)], **parts)
        trainer.train()
        before = trainer.seen
    else:
        before = []
    trainer = trainer_for(scenario, folder, **parts)
    try:
        predicted = trainer.predict(trainer.eval_dataset)
        given.clear()
        metrics = trainer.evaluate()
        if scenario.get("trains", True):
            trainer.train(resume_from_checkpoint=scenario.get("from") or (stop is not None) or None)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "world": trainer.args.world_size}
    reported = {name: value for name, value in metrics.items() if not name.endswith(("runtime", "second", "time"))}
    return {
        "world": trainer.args.world_size,
        "engine": type(trainer.model_wrapped).__name__,
        "seen": before + trainer.seen,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "weights": plain(list(trainer.model.state_dict().values())),
        "predictions": plain(predicted.predictions),
        "label_ids": plain(predicted.label_ids),
        "metrics": reported,
        "given": given,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, place = os.environ.get("RANK", "0"), Path(sys.argv[1])
    found = {name: run(scenario, place / name) for name, scenario in json.loads(sys.argv[2]).items()}
    (place / f"rank-{rank}.json").write_text(json.dumps(found))
