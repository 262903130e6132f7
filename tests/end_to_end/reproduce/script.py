"""A small training script that either library runs: `python -m tests.end_to_end.reproduce.script REQUEST`.

REQUEST is a JSON document: the library, the cases, a folder for each of them, and what to change in their arguments.
Each case runs in a process of its own, forked before anything was computed; with several ranks in as many.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info

FEATURES, CLASSES, TOKENS = 6, 4, 11


class Net(nn.Module):
    """A classifier with dropout."""

    def __init__(self, dropout: float = 0.0, configured: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, CLASSES))
        if configured:
            self.config = SimpleNamespace(problem_type=None)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layers(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Language(nn.Module):
    """A model of tokens whose loss is divided by the number of items that it is given."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(TOKENS, 8), nn.Dropout(dropout)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **further: Any) -> dict[str, Tensor]:
        logits = self.head(self.dropout(self.embedding(input_ids)))
        if labels is None:
            return {"logits": logits}
        items = further.get("num_items_in_batch")
        total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return {"loss": total / ((labels != -100).sum() if items is None else items), "logits": logits}


def row(index: int) -> dict[str, Tensor]:
    x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1000 + index))
    return {"x": x, "labels": torch.tensor(int(x[:3].sum() * 2) % CLASSES)}


def augmented(index: int) -> dict[str, Tensor]:
    found = row(index)
    noise = torch.randn(FEATURES) * 0.3 + random.random() * 0.2 + float(np.random.rand()) * 0.2
    return {**found, "x": found["x"] + noise}


def tokens(index: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(500 + index)
    length = int(torch.randint(2, 9, (), generator=generator))
    ids = torch.randint(0, TOKENS, (length,), generator=generator).tolist()
    return {"input_ids": ids, "labels": [-100 if at % 3 == index % 3 else each for at, each in enumerate(ids)]}


READ = {"row": row, "augmented": augmented, "tokens": tokens}


class Rows(Dataset[Any]):
    """Rows by index."""

    def __init__(self, kind: str, length: int) -> None:
        self.read, self.length = READ[kind], length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index >= self.length:
            raise IndexError(index)
        return self.read(index)


class Stream(IterableDataset[Any]):
    """The same rows, in an order that a small buffer shuffles with torch's generator."""

    def __init__(self, kind: str, length: int) -> None:
        self.read, self.length = READ[kind], length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        buffer: list[int] = []
        for index in range(first, self.length, step):
            buffer.append(index)
            if len(buffer) == 5:
                yield self.read(buffer.pop(int(torch.randint(0, 5, ()))))
        yield from map(self.read, buffer)


def pad(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(each["input_ids"]) for each in rows)

    def padded(name: str, filling: int) -> Tensor:
        return torch.tensor([[*each[name], *[filling] * (longest - len(each[name]))] for each in rows])

    return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100)}


def metrics(prediction: Any) -> dict[str, float]:
    logits, labels = prediction.predictions, prediction.label_ids
    drawn = float(np.random.rand()) + random.random()  # as a metric that samples does
    return {"accuracy": float((logits.argmax(-1) == labels).mean()), "sum": float(logits.sum()), "drawn": drawn}


AUGMENTED = {"data": "augmented", "model": "dropout"}
TOKENIZED = {"data": "tokens", "model": "language"}
EVALUATES = {
    "eval_data": "augmented",
    "eval_strategy": "steps",
    "eval_steps": 9,
    "per_device_eval_batch_size": 5,
}
EPOCHS = {"max_steps": -1, "num_train_epochs": 3}
WORKERS = {"dataloader_num_workers": 2}
LENGTH = 57

CASES: dict[str, dict[str, Any]] = {
    "sequential": {"train_sampling_strategy": "sequential"},
    "random": {},
    "dropout": {"model": "dropout"},
    "accumulation": {"model": "dropout", "gradient_accumulation_steps": 3, "logging_steps": 4},
    "augmentation": {**AUGMENTED},
    "augmentation with workers": {**AUGMENTED, **WORKERS},
    "evaluation": {**AUGMENTED, **EVALUATES, "metrics": True},
    "two ranks": {**AUGMENTED, **EVALUATES, "ranks": 2},
    # More of the same
    "label smoothing": {"model": "configured", "label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2},
    "epochs": {"model": "dropout", **EPOCHS, "gradient_accumulation_steps": 4},
    "evaluation by epoch": {
        "model": "dropout",
        **EPOCHS,
        **EVALUATES,
        **WORKERS,
        "eval_data": "row",
        "eval_strategy": "epoch",
        "eval_on_start": True,
        "metrics": True,
    },
    "clipping": {"max_grad_norm": 0.05},
    "no clipping": {"max_grad_norm": 0},
    "bf16": {"model": "dropout", "bf16": True, **EVALUATES},
    "bf16 with an own loss": {"model": "dropout", "bf16": True, "own_loss": True, **EVALUATES},
    "bf16 on two ranks": {"model": "dropout", "bf16": True, "own_loss": True, "ranks": 2, **EVALUATES},
    "own step": {"model": "dropout", "loaders": "step", **EVALUATES},
    "own loaders": {**AUGMENTED, **EVALUATES, "loaders": "own", "gradient_accumulation_steps": 2},
    "own sampler": {**AUGMENTED, **WORKERS, "loaders": "sampler"},
    "stream": {**AUGMENTED, **EVALUATES, "stream": True},
    "stream with workers": {**AUGMENTED, **WORKERS, "stream": True},
    "schedule-free": {
        "model": "dropout",
        "optim": "schedule_free_adamw",
        "lr_scheduler_type": "constant",
        "warmup_steps": 5,
        **EVALUATES,
    },
    "schedule-free on two ranks": {
        "model": "dropout",
        "optim": "schedule_free_sgd",
        "lr_scheduler_type": "constant",
        "warmup_steps": 5,
        "ranks": 2,
        **EVALUATES,
    },
    "model_init": {"model": "dropout", "model_init": True},
    "unseeded sampler": {**AUGMENTED, **EVALUATES, "accelerator_config": {"use_seedable_sampler": False}},
    "data_seed": {"model": "dropout", "data_seed": 7, "seed": 3},
    "full determinism": {"model": "dropout", "full_determinism": True},
    "persistent workers": {**AUGMENTED, **EVALUATES, **WORKERS, "dataloader_persistent_workers": True},
    "grouped by length": {
        **TOKENIZED,
        **EVALUATES,
        "eval_data": "tokens",
        "train_sampling_strategy": "group_by_length",
    },
    "rebalanced": {
        **TOKENIZED,
        **EVALUATES,
        "eval_data": "tokens",
        "train_sampling_strategy": "batch_rebalance",
        "gradient_accumulation_steps": 3,
    },
    "rebalanced on two ranks": {
        **TOKENIZED,
        "ranks": 2,
        "train_sampling_strategy": "batch_rebalance",
        "gradient_accumulation_steps": 2,
        "dataloader_drop_last": True,
    },
    "tokens": {**TOKENIZED, **EVALUATES, "eval_data": "tokens", "gradient_accumulation_steps": 3},
    "stored rows with workers": {"data": "stored", "model": "dropout", **WORKERS},
    "language model": {
        "data": "table",
        "model": "decoder",
        "gradient_accumulation_steps": 2,
        **EVALUATES,
        "eval_data": "table",
        "label_smoothing_factor": 0.1,
        "bf16": True,
    },
    "language model on two ranks": {
        "data": "table",
        "model": "decoder",
        "gradient_accumulation_steps": 2,
        "ranks": 2,
        **EVALUATES,
        "eval_data": "table",
    },
    "several evaluations": {"model": "dropout", **EVALUATES, "eval_data": {"one": "augmented", "two": "row"}},
    "tokens on two ranks": {
        **TOKENIZED,
        **EVALUATES,
        "eval_data": "tokens",
        "ranks": 2,
        "gradient_accumulation_steps": 3,
        "logging_steps": 3,
    },
    "two runs": {"model": "dropout", "runs": 2, "max_steps": 12},
    "two runs with model_init": {"model_init": True, "runs": 2, "max_steps": 12},
    "stream on two ranks": {**AUGMENTED, "stream": True, "ranks": 2},
    "split batches on two ranks": {
        "model": "dropout",
        **EVALUATES,
        "per_device_eval_batch_size": 6,
        "ranks": 2,
        "accelerator_config": {"split_batches": True, "use_seedable_sampler": False},
    },
}
"""What is special about each case: arguments, and what is not one of them."""

OWN = ("runs", "own_loss", "loaders", "data", "model", "stream", "eval_data", "metrics", "model_init", "ranks")


def make_model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "language":
        return Language(0.2)
    if kind == "decoder":
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=TOKENS, attention_dropout=0.2, **sizes))  # type: ignore[arg-type]
    return Net(0.0 if kind == "plain" else 0.3, configured=kind == "configured")


def run(library: str, case: dict[str, Any], folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the logs and a digest of the weights."""
    if library == "hexloop":
        from hexloop import Trainer, TrainingArguments
    else:
        from transformers import Trainer, TrainingArguments  # type: ignore[assignment]
    resume, reproduce = changes.pop("resume", None), changes.pop("reproduce", "transformers")
    given = {**case, **changes}
    own = {name: given.pop(name) for name in OWN if name in given}
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 40,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **given,
    }
    if library == "hexloop":
        arguments["reproduce"] = reproduce
    if own.get("ranks"):
        arguments["ddp_backend"] = "gloo"
    kind, length = own.get("data", "row"), LENGTH
    stream, model = own.get("stream", False), own.get("model", "plain")

    def dataset(kind: str, rows: int) -> Any:
        if kind == "table":
            from datasets import Dataset as Table

            return Table.from_list([{**tokens(index), "unused": index} for index in range(rows)])
        if kind == "stored":
            return [row(index) for index in range(rows)]
        return Stream(kind, rows) if stream else Rows(kind, rows)

    evaluated = own.get("eval_data")
    if isinstance(evaluated, dict):
        evaluation: Any = {name: dataset(each, 13) for name, each in evaluated.items()}
    else:
        evaluation = None if evaluated is None else dataset(evaluated, 13)
    starts = {"model_init": lambda: Net(0.3)} if own.get("model_init") else {"model": make_model(model)}

    class OwnLoss(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs = model(**inputs)
            logits = outputs["logits"]
            loss = outputs["loss"] + 0.1 * (logits @ logits.T).square().mean()
            return (loss, outputs) if return_outputs else loss

    class OwnLoaders(Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_size=4, shuffle=True)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return DataLoader(self.eval_dataset, batch_size=5)

    class OwnSampler(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return WeightedRandomSampler([1.0 + index % 3 for index in range(LENGTH)], LENGTH)

    class OwnStep(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            with torch.no_grad():  # in evaluation mode after an evaluation
                moved = inputs["x"] + 0.1 * model(**inputs)["logits"].mean()
            return super().training_step(model, {**inputs, "x": moved}, num_items_in_batch)

    kinds = {"own": OwnLoaders, "sampler": OwnSampler, "step": OwnStep}
    trainer_class = OwnLoss if own.get("own_loss") else kinds.get(own.get("loaders", ""), Trainer)
    trainer: Any = trainer_class(
        **starts,
        args=TrainingArguments(**arguments),
        train_dataset=dataset(kind, length),
        eval_dataset=evaluation,
        data_collator=pad if kind in ("tokens", "table") else None,
        compute_metrics=metrics if own.get("metrics") else None,
    )
    for _ in range(own.get("runs", 1)):
        trainer.train(**({"resume_from_checkpoint": resume} if resume else {}))
    end = [trainer.evaluate()] if evaluated is not None else []
    weights = {name: digest(tensor) for name, tensor in trainer.model.state_dict().items()}
    logs = [without_times(each) for each in trainer.state.log_history + end]
    return {"logs": logs, "weights": weights, "imported": DrawingFinder.packages}


def digest(tensor: Tensor) -> str:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def without_times(log: dict[str, Any]) -> dict[str, str]:
    """Return the numbers of a log, every bit of them, without measurements of time and work."""
    left_out = ("runtime", "per_second", "total_flos", "preparation_time")
    return {name: repr(float(value)) for name, value in log.items() if not name.endswith(left_out)}


def in_child(library: str, name: str, folder: str, changes: dict[str, Any], rank: int) -> None:
    """Run a case in this process, which was forked for it, and exit."""
    code = 1
    try:
        torch.set_num_threads(1)
        result = run(library, CASES[name], Path(folder), changes)
        Path(folder, f"result-{rank}.json").write_text(json.dumps(result))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class DrawingFinder:
    """Draws a random number whenever a package, or torch's compiler, is imported, as the import of some packages does.

    packages: those whose imports drew.
    """

    packages: ClassVar[list[str]] = []

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        is_package = "." not in name and name not in sys.stdlib_module_names
        if name == "torch._dynamo" or (is_package and PathFinder.find_spec(name) is not None):
            cls.packages.append(name)
            random.getrandbits(32)


def main(request: dict[str, Any]) -> int:
    """Run the cases one after another, each in processes of its own; return how many failed."""
    if request["library"] == "hexloop":
        import hexloop

        _ = hexloop.Trainer, hexloop.TrainingArguments
        if not request["imports_draw"]:  # which a run imports itself
            for package in ("torch._dynamo", "accelerate", "hexloop.app.assembly.torch.framework"):
                import_module(package)
    else:
        import transformers

        _ = transformers.Trainer, transformers.TrainingArguments
    if request["imports_draw"]:
        sys.meta_path.insert(0, DrawingFinder)
    failed = 0
    for number, (name, folder, changes) in enumerate(request["runs"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
        ranks = CASES[name].get("ranks", 1)
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                if ranks > 1:
                    port = str(request["port"] + number)
                    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": str(ranks)}
                    os.environ["OMP_NUM_THREADS"] = "1"
                in_child(request["library"], name, folder, dict(changes), rank)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        if any(codes):
            print(f"{name} failed", file=sys.stderr)
        failed += any(codes)
    return failed


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
