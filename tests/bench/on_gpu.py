"""Cost per step and per save on a GPU: a hand-written loop, hexloop and transformers.

Run as `python -m tests.bench.on_gpu`. All run in one process, in rounds in a rotating order, after a warm-up run of
each. A figure per step is the slope between a short and a long run, each up to the end of the GPU's work. A save writes
a GPT-2 of 124 million parameters with AdamW's moments; its cost is the wall time of a run with saves minus that of a
run without, per save, and its stall is how much longer the longest step around it takes than the median step.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.bench.libraries import silence
from tests.bench.save_stall import Texts as Sequences
from tests.bench.workloads import GPT, RATE, Texts
from tests.reference import bare_loop

SAVES, STEPS_PER_SAVE = 4, 40


@frozen
class Work:
    """A model and its data; `batch` samples make a step, `short` and `long` are the steps of the runs compared."""

    model: Callable[[], nn.Module]
    data: Callable[[int], Any]
    batch: int
    short: int
    long: int
    bf16: bool = False
    collate: Callable[[list[Any]], Any] = bare_loop.stack


def gpt2() -> nn.Module:
    """Return a GPT-2 of 124 million parameters without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False))


WORKS = {
    "TinyMLP, batch 8": Work(bare_loop.TinyMLP, bare_loop.Rows, 8, 100, 1100),
    "GPT of 0.8 M, batch 8": Work(GPT, Texts, 8, 50, 350),
    "GPT-2 of 124 M, 8 x 512 tokens, bf16": Work(gpt2, lambda length: Sequences(length, 512), 8, 5, 45, bf16=True),
}


def bare(work: Work, model: nn.Module, steps: int) -> None:
    """The hand-written loop, with pinned batches that are copied without waiting."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / steps))
    data = work.data(steps * work.batch)
    loader: DataLoader[Any] = DataLoader(data, work.batch, shuffle=True, collate_fn=work.collate, pin_memory=True)
    total = torch.zeros((), device="cuda")
    model.train()
    for batch in loader:
        moved = {name: values.to("cuda", non_blocking=True) for name, values in batch.items()}
        with torch.autocast("cuda", torch.bfloat16) if work.bf16 else nullcontext():
            loss: Tensor = model(**moved)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()


def trained(library: str, work: Work, model: nn.Module, steps: int, callbacks: Any = (), **given: Any) -> None:
    """Train with a library's Trainer."""
    if library == "hexloop":
        from hexloop import Trainer, TrainingArguments
    else:
        from transformers import Trainer, TrainingArguments  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="hexloop-bench-") as folder:
        chosen: dict[str, Any] = {
            "per_device_train_batch_size": work.batch, "learning_rate": RATE, "max_steps": steps, "bf16": work.bf16,
            "save_strategy": "no", "report_to": "none", "disable_tqdm": True, **given,
        }  # fmt: skip
        args: Any = TrainingArguments(output_dir=folder, **chosen)
        data = work.data(steps * work.batch)
        trainer: Any = Trainer(
            model=model, args=args, train_dataset=data, data_collator=work.collate, callbacks=list(callbacks)
        )
        trainer.train()


def timed(library: str, work: Work, steps: int) -> float:
    """Return the seconds of a run, without the construction of the model."""
    model = work.model()
    gc.collect()
    torch.cuda.synchronize()
    began = time.perf_counter()
    if library == "bare":
        bare(work, model, steps)
    else:
        trained(library, work, model, steps)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def compare_steps(name: str, work: Work, rounds: int) -> None:
    """Print microseconds per step, and the ratio to the hand-written loop."""
    libraries = ["bare", "hexloop", "transformers"]
    found: dict[str, list[float]] = {library: [] for library in libraries}
    with silence():
        for library in libraries:
            timed(library, work, work.short)
        for turn in range(rounds):
            for library in libraries[turn % 3 :] + libraries[: turn % 3]:
                short, long = timed(library, work, work.short), timed(library, work, work.long)
                found[library].append(1e6 * (long - short) / (work.long - work.short))
    for library in libraries:
        ratios = sorted(one / other for one, other in zip(found[library], found["bare"], strict=True))
        print(
            f"{name:<38}{library:<14}{median(found[library]):>9.0f} us a step; ratio {median(ratios):.3f}, "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f} in {rounds} rounds",
            flush=True,
        )


def run_with_saves(library: str, saving: bool) -> tuple[float, list[float], float]:
    """Return the wall time of a run, the stalls after its saves, and its median step, in seconds."""
    work = Work(gpt2, lambda length: Sequences(length, 128), 8, 0, 0)
    if library == "hexloop":
        from hexloop import TrainerCallback
    else:
        from transformers import TrainerCallback  # type: ignore[assignment]
    ends: list[float] = []

    class Stopwatch(TrainerCallback):
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    steps = SAVES * STEPS_PER_SAVE + STEPS_PER_SAVE // 2
    strategy = {"save_strategy": "steps", "save_steps": STEPS_PER_SAVE, "save_total_limit": 2} if saving else {}
    model = work.model()
    gc.collect()
    began = time.perf_counter()
    with silence():
        trained(library, work, model, steps, [Stopwatch()], logging_strategy="no", **strategy)
    wall = time.perf_counter() - began
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    stalls = [
        max(gaps[step - 1 : step + 2]) - median(gaps) for step in range(STEPS_PER_SAVE, steps - 2, STEPS_PER_SAVE)
    ]
    return wall, stalls, median(gaps)


def compare_saves(rounds: int) -> None:
    """Print what a save of 1.5 GB costs."""
    libraries = ("hexloop", "transformers")
    found: dict[tuple[str, bool], list[tuple[float, list[float], float]]] = {}
    for turn in range(rounds):
        kinds = list(itertools.product(libraries, (True, False)))
        for kind in kinds if turn % 2 == 0 else kinds[::-1]:
            found.setdefault(kind, []).append(run_with_saves(*kind))
    cost, stall = {}, {}
    for library in libraries:
        pairs = list(zip(found[library, True], found[library, False], strict=True))
        cost[library] = median(saving[0] - other[0] for saving, other in pairs) / (SAVES + 1)
        stall[library] = median(each for saving, _ in pairs for each in saving[1])
        longest = max(each for saving, _ in pairs for each in saving[1])
        step = median(other[2] for _, other in pairs)
        print(
            f"saves of GPT-2 by {library:<14} step {step * 1e3:.1f} ms, stall {stall[library] * 1e3:.1f} ms (at most "
            f"{longest * 1e3:.1f}), cost {cost[library] * 1e3:.0f} ms a save",
            flush=True,
        )
    print(
        f"hexloop's stall is {stall['hexloop'] / stall['transformers']:.4f}, its cost "
        f"{cost['hexloop'] / cost['transformers']:.3f} of transformers'"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save-rounds", type=int, default=2)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, work in WORKS.items():
        compare_steps(name, work, options.rounds)
    compare_saves(options.save_rounds)


if __name__ == "__main__":
    main()
