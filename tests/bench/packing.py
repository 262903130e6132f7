"""Packing: how full rows are, how fast they are made, when the first batch comes, and what padding costs.

Run as `python -m tests.bench.packing [PART ...]`; the parts are first, fill, worker and padding. `padding` also trains
with trl's SFTTrainer if trl is installed.

Goals: rows filled to 0.95; 10**6 tokens a second in one process that reads and collates; the first batch of 10**7
documents within 2 seconds and 200 MB; padding-free training at 1.3 of the tokens a second of padded training, and not
slower than trl's.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from hexloop import Trainer, TrainingArguments
from hexloop.adapters.batches.torch.document_lengths import DocumentLengths
from hexloop.adapters.batches.torch.documents import DocumentCollate
from hexloop.adapters.batches.torch.order import VectorisedPermutation
from hexloop.adapters.batches.torch.packing import PackedBatchSampler, PackedLoader
from hexloop.domain.events import StepBegan
from hexloop.domain.packing import WINDOW, Packing, Planner, UnitOrder, tokens_of

MEAN, MAX_LENGTH = 350, 2048

SEED = 0


def log_normal(count: int, mean: float = MEAN) -> list[int]:
    """Return lengths of a log-normal distribution."""
    source = random.Random(SEED)
    return [max(1, int(source.lognormvariate(math.log(mean) - 0.5, 1.0))) for _ in range(count)]


def peak_megabytes() -> float:
    """Return the peak of this process's resident memory, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# How full rows are


def fill() -> None:
    """Print which share of the tokens of rows is used, and how long a window takes to plan."""
    mix = log_normal(4 * WINDOW)
    windows = [mix[start : start + WINDOW] for start in range(0, len(mix), WINDOW)]
    for strategy in ("bfd", "bfd_split", "wrapped"):
        packing, filled, took = Packing(MAX_LENGTH, strategy), list[float](), list[float]()
        for lengths in windows:
            began = time.perf_counter()
            rows = packing.rows(range(WINDOW), lengths)
            took.append(time.perf_counter() - began)
            filled.append(sum(map(tokens_of, rows)) / (MAX_LENGTH * len(rows)))
        print(f"{strategy}: filled to {min(filled):.4f} (goal 0.95), {1000 * median(took):.1f} ms a window of {WINDOW}")


# How fast a process makes batches


def worker() -> None:
    """Print the tokens a second of one process that plans, reads and collates."""
    lengths = log_normal(2 * WINDOW)
    rows = [{"input_ids": list(range(length))} for length in lengths]
    sources = {"list": rows, "table": datasets.Dataset.from_list(rows)}
    for name, data in sources.items():
        for strategy in ("bfd", "wrapped"):
            planner = Planner(Packing(MAX_LENGTH, strategy))
            found = DocumentLengths(data, "length")

            def make(epoch: int, data: Any = data, planner: Planner = planner, found: Any = found) -> UnitOrder:
                return UnitOrder(VectorisedPermutation(SEED, epoch, len(data)), planner, found, SEED, epoch)

            loader = PackedLoader(data, PackedBatchSampler(make, 8, False), DocumentCollate("rows"))
            began, tokens = time.process_time(), 0
            for batch in loader:
                tokens += int((batch["labels"] != -100).sum())
            print(f"{strategy} of a {name}: {tokens / (time.process_time() - began) / 1e6:.2f} million tokens a second")


# When the first batch comes

DOCUMENTS = 10**7


class Generated(Dataset[Any]):
    """Documents that are made when they are read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": np.zeros(1 + index * 2654435761 % (2 * MEAN), dtype=np.int64)}


def stored(path: Path, count: int) -> Any:
    """Return a table of short documents in a file, in chunks as `datasets` writes them."""
    pa: Any = importlib.import_module("pyarrow")
    size = 1000
    offsets = np.arange(0, 4 * size + 1, 4, dtype=np.int32)
    column = pa.ListArray.from_arrays(offsets, np.ones(4 * size, dtype=np.int32))
    batch = pa.record_batch([column], names=["input_ids"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        for _ in range(count // size):
            writer.write_batch(batch)
    kind: Any = datasets.Dataset
    return kind.from_file(str(path))


def first() -> None:
    """Print the time and the memory of a run until its first step."""
    with tempfile.TemporaryDirectory() as folder:
        stored(Path(folder, "small.arrow"), 10_000)
        first_step(Generated(100), folder)
        sources: dict[str, Callable[[], Any]] = {
            "that are made when read": lambda: Generated(DOCUMENTS),
            "of a table in a file": lambda: stored(Path(folder, "large.arrow"), DOCUMENTS),
        }
        for name, make in sources.items():
            data = make()
            held, began = peak_megabytes(), time.perf_counter()
            first_step(data, folder)
            took, more = time.perf_counter() - began, peak_megabytes() - held
            print(f"{DOCUMENTS:,} documents {name}: {took:.2f} s (goal 2), {more:.0f} MB more (goal 200)")


def first_step(data: Any, folder: str) -> None:
    """Run until the first batch is ready, and close the run."""
    arguments = TrainingArguments(
        folder, packing=True, max_length=MAX_LENGTH, max_steps=10, per_device_train_batch_size=8, use_cpu=True,
        save_strategy="no", report_to="none",
    )  # fmt: skip
    trainer: Any = Trainer(llama(hidden=16, layers=1), arguments, train_dataset=data, loggers=[])
    with closing(trainer.stream()) as events:
        while type(next(events)) is not StepBegan:
            pass


# What padding costs

WORDS, LONGEST, BATCH, STEPS = 1000, 512, 16, 12


def llama(hidden: int = 128, layers: int = 4) -> Any:
    """Return a small Llama."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=MAX_LENGTH, bos_token_id=None,
        eos_token_id=1, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    kind: Any = LlamaForCausalLM
    return kind._from_config(config, attn_implementation="sdpa")


def texts() -> Any:
    """Return tokenised documents of a log-normal mix of lengths."""
    source = random.Random(SEED)
    lengths = [min(length, LONGEST) for length in log_normal(BATCH * STEPS * 8, 100)]
    return datasets.Dataset.from_list(
        [{"input_ids": [source.randrange(2, WORDS) for _ in range(length)]} for length in lengths]
    )


KINDS: dict[str, dict[str, Any]] = {
    "padded": {"max_length": None},
    "padding-free": {"padding_free": True, "max_length": None},
    "packed": {"packing": True, "max_length": LONGEST},
}
"""The documents are cut off already, because trl takes no length with `padding_free`."""


def padding() -> None:
    """Print tokens a second, with and without padding, of hexloop and of trl in turns."""
    data, rates = texts(), dict[tuple[str, str], list[float]]()
    trainers: dict[str, Callable[..., Any]] = {"hexloop": ours}
    if importlib.util.find_spec("trl") is None:
        print("trl is not installed, so that there is nothing to compare with.")
    else:
        trainers["trl"] = theirs
    for _ in range(3):
        for kind, given in KINDS.items():
            for name, make in trainers.items():
                with tempfile.TemporaryDirectory() as folder:
                    rates.setdefault((name, kind), []).append(rate(make(folder, data, **given)))
    for name in trainers:
        for kind in KINDS:
            found = median(rates[name, kind])
            ratios = f"{found / median(rates[name, 'padded']):.2f} of padded"
            if "trl" in trainers and name != "trl":
                ratios += f", {found / median(rates['trl', kind]):.2f} of trl's"
            print(f"{name}, {kind}: {found:,.0f} tokens a second, {ratios}")


OPTIONS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH,
    "use_cpu": True,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "logging_strategy": "no",
}


def ours(folder: str, data: Any, **given: Any) -> Any:
    """Return hexloop's trainer. Packed batches have rows of as many tokens as the padded ones have on average."""
    options = rows(OPTIONS, {**given, "max_length": LONGEST})
    return Trainer(llama(), TrainingArguments(folder, **options), train_dataset=data)


def rows(options: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a run; of packed rows a batch has a quarter of the number, which hold more documents."""
    return {**options, **given, **({"per_device_train_batch_size": BATCH // 4} if "packing" in given else {})}


def theirs(folder: str, data: Any, **given: Any) -> Any:
    """Return trl's trainer of the same data and options."""
    trl: Any = importlib.import_module("trl")

    from tests.end_to_end.parity.scripts.texts import make_tokenizer

    options = rows(OPTIONS, given)
    config = trl.SFTConfig(
        folder, **options, dataset_kwargs={"skip_prepare_dataset": False}, gradient_checkpointing=False, bf16=False
    )
    return trl.SFTTrainer(llama(), config, train_dataset=data, processing_class=make_tokenizer())


def rate(trainer: Any) -> float:
    """Return the predicted tokens that a trainer computes in a second, without its first two steps."""
    tokens, began, steps = 0, 0.0, 0
    own = trainer.training_step

    def counted(model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        nonlocal tokens, began, steps
        if steps == 2:
            began, tokens = time.perf_counter(), 0
        steps += 1
        tokens += int((inputs["labels"] != -100).sum())
        return own(model, inputs, *given, **named)

    trainer.training_step = counted
    trainer.train()
    return tokens / (time.perf_counter() - began)


PARTS: dict[str, Callable[[], None]] = {"first": first, "fill": fill, "worker": worker, "padding": padding}
"""In this order, because the peak of memory is that of everything before."""


def main(names: Sequence[str]) -> Iterator[str]:
    """Run the parts with these names, or all."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in names or PARTS:
        print(f"== {name}", flush=True)
        PARTS[name]()
        yield name


if __name__ == "__main__":
    list(main(sys.argv[1:]))
