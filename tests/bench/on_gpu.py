"""What training on a GPU costs: steps, compiled and captured steps, saves, resume, memory, and waits.

Run as `python -m tests.bench.on_gpu [--part NAME ...] [--results FILE]`; without a part, all of them. Each part takes
less than eight minutes on an H100, and appends its rows to the file, one JSON object a line, as they are measured;
`--show FILE` prints them as a table. It needs torch 2.11 or newer, transformers and accelerate, no network, no files
beside the repository, and neither datasets nor pyarrow. Lightning is measured if it is installed, fp8 with torchao.
Without a GPU, or with `--small`, everything runs with small models, on the CPU: that tries the script.

All libraries run in one process, in rounds in a rotating order, after a warm-up run of each. Seconds per step are the
slope between a short and a long run, each up to the end of the GPU's work, and ratios are to the hand-written loop in
the same round. A save writes a GPT-2 with AdamW's moments. Its cost is the wall time of a run with saves minus that of
a run without, per save, and its stall is how much longer the longest step around it takes than the median step.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.bench import libraries
from tests.bench.libraries import accelerated, silence
from tests.bench.save_stall import Texts as Sequences
from tests.bench.workloads import BATCH, GPT, RATE, Texts
from tests.reference import bare_loop

Row = dict[str, Any]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAVES, STEPS_PER_SAVE = 4, 40


@frozen
class Work:
    """A model and its data; `short` and `long` are the steps of the runs compared."""

    model: Callable[[], nn.Module]
    data: Callable[[int], Any]
    short: int
    long: int
    bf16: bool = False
    collate: Callable[[list[Any]], Any] = bare_loop.stack


def gpt2(small: bool) -> nn.Module:
    """Return a GPT-2 of 124 million parameters, or a `small` one of 0.9 million, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2} if small else {}
    return GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False, **size))


def llama(small: bool) -> nn.Module:
    """Return a Llama of 162 million parameters, or a `small` one of 3 million; GPT-2 has no linear layers of torch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    layers, width = (2, 32) if small else (12, 768)
    size: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 8 * width // 3 // 16 * 16,
    }
    heads = 2 if small else 12
    return LlamaForCausalLM(LlamaConfig(vocab_size=50257, num_attention_heads=heads, use_cache=False, **size))


def works(small: bool) -> dict[str, Work]:
    """Return the workloads by name."""
    length, long = (16, 4) if small else (512, 45)
    return {
        "TinyMLP": Work(bare_loop.TinyMLP, bare_loop.Rows, 10 if small else 100, 60 if small else 1100),
        "GPT of 0.8 M": Work(GPT, Texts, 2 if small else 50, 6 if small else 350),
        f"GPT-2 of {'0.9' if small else '124'} M, {length} tokens, bf16": Work(
            partial(gpt2, small), lambda rows: Sequences(rows, length), 2 if small else 5, long, bf16=True
        ),
    }


def wait() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# The libraries


def autocast(work: Work) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(DEVICE, torch.bfloat16) if work.bf16 else contextlib.nullcontext()


def pieces(work: Work, model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any, DataLoader[Any]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / steps))
    data = work.data(steps * BATCH)
    return (
        optimizer,
        schedule,
        DataLoader(data, BATCH, shuffle=True, collate_fn=work.collate, pin_memory=DEVICE == "cuda"),
    )


def bare(work: Work, model: nn.Module, steps: int, compiled: bool = False) -> None:
    """The hand-written loop, with pinned batches that are copied without waiting."""
    model = model.to(DEVICE)
    optimizer, schedule, loader = pieces(work, model, steps)
    called: Any = torch.compile(model) if compiled else model
    total = torch.zeros((), device=DEVICE)
    model.train()
    for batch in loader:
        moved = {name: values.to(DEVICE, non_blocking=True) for name, values in batch.items()}
        with autocast(work):
            loss: Tensor = called(**moved)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()


def by_accelerate(work: Work, model: nn.Module, steps: int) -> None:
    """The hand-written loop with accelerate."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=DEVICE == "cpu", mixed_precision="bf16" if work.bf16 else "no")
    accelerated(accelerator, model, None, steps, pieces(work, model, steps))


def by_lightning(work: Work, model: nn.Module, steps: int) -> None:
    """Lightning's Trainer."""
    libraries.by_lightning(
        model, None, steps, pieces(work, model, steps), accelerator="gpu" if DEVICE == "cuda" else "cpu",
        precision="bf16-mixed" if work.bf16 else "32-true",
    )  # fmt: skip


def trained(library: str, work: Work, model: nn.Module, steps: int, callbacks: Any = (), **given: Any) -> Any:
    """Train with the Trainer of hexloop or transformers; return it. resume: continue from its last checkpoint."""
    if library == "hexloop":
        from hexloop import Trainer, TrainingArguments
    else:
        from transformers import Trainer, TrainingArguments  # type: ignore[assignment]
    folder, resume = given.pop("output_dir", None), given.pop("resume", None)
    with tempfile.TemporaryDirectory(prefix="hexloop-bench-") as temporary:
        chosen: dict[str, Any] = {
            "per_device_train_batch_size": BATCH, "learning_rate": RATE, "max_steps": steps, "bf16": work.bf16,
            "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": DEVICE == "cpu", **given,
        }  # fmt: skip
        args: Any = TrainingArguments(output_dir=folder or temporary, **chosen)
        data = work.data(steps * BATCH)
        trainer: Any = Trainer(
            model=model, args=args, train_dataset=data, data_collator=work.collate, callbacks=list(callbacks)
        )
        trainer.train(resume_from_checkpoint=resume)
    return trainer


Training = Callable[[Work, nn.Module, int], Any]


def trainer_of(library: str, **given: Any) -> Training:
    return lambda work, model, steps: trained(library, work, model, steps, **given)


# Parts


def seconds(train: Training, work: Work, steps: int) -> float:
    """Return the seconds of a run, without the construction of the model."""
    model = work.model()
    gc.collect()
    wait()
    began = time.perf_counter()
    train(work, model, steps)
    wait()
    return time.perf_counter() - began


def compared(name: str, work: Work, libraries: dict[str, Training], rounds: int) -> Iterator[Row]:
    """Yield microseconds per step, and the ratio to the first library."""
    found: dict[str, list[float]] = {library: [] for library in libraries}
    names = list(libraries)
    with silence():
        for library in names:
            seconds(libraries[library], work, work.short)
        for turn in range(rounds):
            at = turn % len(names)
            for library in names[at:] + names[:at]:
                short, long = (seconds(libraries[library], work, steps) for steps in (work.short, work.long))
                found[library].append(1e6 * (long - short) / (work.long - work.short))
    for library in names:
        ratios = sorted(one / other for one, other in zip(found[library], found[names[0]], strict=True))
        yield {
            "work": name, "library": library, "us a step": round(median(found[library])),
            "ratio": round(median(ratios), 3), "lowest": round(ratios[0], 3), "highest": round(ratios[-1], 3),
        }  # fmt: skip


def steps(small: bool, rounds: int) -> Iterator[Row]:
    """Eager steps of all libraries."""
    libraries: dict[str, Training] = {
        "bare": bare, "hexloop": trainer_of("hexloop"), "accelerate": by_accelerate,
        **({"Lightning": by_lightning} if find_spec("lightning") else {}), "transformers": trainer_of("transformers"),
    }  # fmt: skip
    for name, work in works(small).items():
        yield from compared(name, work, libraries, rounds)


def compiled(small: bool, rounds: int) -> Iterator[Row]:
    """Compiled steps, also with captured or compiled clipping and update."""
    libraries: dict[str, Training] = {
        "bare": partial(bare, compiled=True),
        "hexloop": trainer_of("hexloop", torch_compile=True),
        "hexloop, capture_step": trainer_of("hexloop", torch_compile=True, capture_step=True),
        "hexloop, capture_step, adamw_torch": trainer_of(
            "hexloop", torch_compile=True, capture_step=True, optim="adamw_torch"
        ),
        "transformers": trainer_of("transformers", torch_compile=True),
    }
    name, work = list(works(small).items())[0 if small else 2]
    yield from compared(f"{name}, compiled", work, libraries, max(2, rounds // 2))


def capture(small: bool, rounds: int) -> Iterator[Row]:
    """Captured steps without the compiler; a CPU cannot record."""
    if DEVICE == "cpu":
        yield {"skipped": "the device cannot record"}
        return
    for name, work in works(small).items():
        libraries: dict[str, Training] = {
            "bare": bare,
            "hexloop": trainer_of("hexloop"),
            "hexloop, capture_step": trainer_of("hexloop", capture_step=True),
        }
        yield from compared(name, work, libraries, rounds)


def fp8(small: bool, rounds: int) -> Iterator[Row]:
    """Steps in fp8 by torchao, compiled on a GPU."""
    if not find_spec("torchao"):
        yield {"skipped": "torchao is not installed"}
        return
    length = 16 if small else 512
    short, long = (2, 4) if small else (5, 45)
    work = Work(partial(llama, small), lambda rows: Sequences(rows, length), short, long, bf16=True)
    compiles = DEVICE == "cuda"
    libraries: dict[str, Training] = {
        "bf16": trainer_of("hexloop", torch_compile=compiles),
        "fp8": trainer_of("hexloop", torch_compile=compiles, fp8="torchao"),
    }
    yield from compared(f"Llama of {3 if small else 162} M, {length} tokens", work, libraries, max(2, rounds // 2))


def run_with_saves(library: str, saving: bool, small: bool, room: bool) -> tuple[float, list[float], float]:
    """Return the wall time of a run, the stalls after its saves, and its median step, in seconds.

    room: whether the GPU has memory for a copy.
    """
    work = Work(partial(gpt2, small), lambda length: Sequences(length, 128), 0, 0)
    if library == "hexloop":
        from hexloop import TrainerCallback
    else:
        from transformers import TrainerCallback  # type: ignore[assignment]
    ends: list[float] = []

    class Stopwatch(TrainerCallback):
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            wait()
            ends.append(time.perf_counter())

    every = 4 if small else STEPS_PER_SAVE
    count = SAVES * every + every // 2
    strategy = {"save_strategy": "steps", "save_steps": every, "save_total_limit": 2} if saving else {}
    model = work.model()
    gc.collect()
    figures = torch.cuda.mem_get_info
    began = time.perf_counter()
    try:
        if not room:
            torch.cuda.mem_get_info = lambda device=None: (0, figures(device)[1])
        with silence():
            trained(library, work, model, count, [Stopwatch()], logging_strategy="no", **strategy)
    finally:
        torch.cuda.mem_get_info = figures
    wall = time.perf_counter() - began
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    stalls = [max(gaps[step - 1 : step + 2]) - median(gaps) for step in range(every, count - 2, every)]
    return wall, stalls, median(gaps)


def saves(small: bool, rounds: int) -> Iterator[Row]:
    """What a save of GPT-2 and its moments costs, with room for a copy on the GPU and without."""
    kinds = [("hexloop", True), *([("hexloop", False)] if DEVICE == "cuda" else []), ("transformers", True)]
    found: dict[tuple[str, bool, bool], list[tuple[float, list[float], float]]] = {}
    for turn in range(max(1, rounds // 2)):
        each = [(library, room, saving) for library, room in kinds for saving in (True, False)]
        for library, room, saving in each if turn % 2 == 0 else each[::-1]:
            found.setdefault((library, room, saving), []).append(run_with_saves(library, saving, small, room))
    for library, room in kinds:
        pairs = list(zip(found[library, room, True], found[library, room, False], strict=True))
        stalls = [each for saving, _ in pairs for each in saving[1]]
        yield {
            "library": library, "room": room, "step ms": round(1e3 * median(other[2] for _, other in pairs), 2),
            "stall ms": round(1e3 * median(stalls), 2), "longest stall ms": round(1e3 * max(stalls), 2),
            "cost ms a save": round(1e3 * median(saving[0] - other[0] for saving, other in pairs) / (SAVES + 1), 1),
        }  # fmt: skip


def resume(small: bool, rounds: int) -> Iterator[Row]:
    """Seconds from `train(resume_from_checkpoint=True)` to the end of the first step."""
    work = Work(partial(gpt2, small), lambda _length: Sequences(4 * BATCH, 16), 0, 0)
    for library in ("hexloop", "transformers"):
        with tempfile.TemporaryDirectory(prefix="hexloop-bench-") as folder, silence(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = {"output_dir": folder, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
            trained(library, work, work.model(), 2, **given)
            took = []
            for _ in range(max(2, rounds // 2)):
                model = work.model()
                wait()
                began = time.perf_counter()
                trained(library, work, model, 3, output_dir=folder, resume=str(Path(folder, "checkpoint-2")))
                wait()
                took.append(time.perf_counter() - began)
        yield {"library": library, "seconds": round(median(took), 3)}


def memory(small: bool, rounds: int) -> Iterator[Row]:
    """Peak memory of the GPU in a run."""
    if DEVICE == "cpu":
        yield {"skipped": "only a GPU's memory is measured"}
        return
    name, work = list(works(small).items())[2]
    kinds: dict[str, Training] = {
        "bare": bare, "hexloop": trainer_of("hexloop"), "transformers": trainer_of("transformers"),
        "hexloop, capture_step": trainer_of("hexloop", capture_step=True),
    }  # fmt: skip
    for library, train in kinds.items():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with silence():
            train(work, work.model(), 6)
        yield {"work": name, "library": library, "MiB": (torch.cuda.max_memory_allocated() - before) >> 20}


def waits(small: bool, rounds: int) -> Iterator[Row]:
    """How often the host waits for the GPU in 20 steps without a log, as torch counts."""
    if DEVICE == "cpu":
        yield {"skipped": "a CPU waits for nothing"}
        return
    for name, work in works(small).items():
        for library in ("hexloop", "transformers"):
            counts = []
            for count in (10, 30):
                with silence(), warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    torch.cuda.set_sync_debug_mode("warn")
                    try:
                        trained(library, work, work.model(), count, logging_strategy="no")
                    finally:
                        torch.cuda.set_sync_debug_mode("default")
                counts.append(sum("synchroniz" in str(each.message) for each in caught))
            yield {"work": name, "library": library, "waits in 20 steps": counts[1] - counts[0]}


def out_of_memory(small: bool, rounds: int) -> Iterator[Row]:
    """Whether a batch that does not fit is recognised, and a smaller one found."""
    if DEVICE == "cpu":
        yield {"skipped": "only a GPU's memory is limited here"}
        return
    _, work = list(works(small).items())[2]
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + (6 << 30)) / total))
    try:
        with silence():
            trainer = trained(
                "hexloop", work, work.model(), 2, per_device_train_batch_size=256, auto_find_batch_size=True
            )
        yield {"asked": 256, "found": trainer.state.train_batch_size, "free MiB": free >> 20}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


PARTS: dict[str, Callable[[bool, int], Iterator[Row]]] = {
    each.__name__: each for each in (steps, compiled, capture, fp8, saves, resume, memory, waits, out_of_memory)
}


def show(path: Path) -> None:
    """Print the rows of a file of results, one table a part."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for part, found in itertools.groupby(rows, key=lambda row: row["part"]):
        print(f"\n{part}")
        for row in found:
            print("  " + "; ".join(f"{name} {value}" for name, value in row.items() if name != "part"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part (repeatable)")
    parser.add_argument("--results", type=Path, default=Path("gpu.jsonl"), help="file to which rows are appended")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="small models and few steps")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the rows of a file of results")
    options = parser.parse_args()
    if options.show:
        show(options.show)
        return
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    small = options.small or DEVICE == "cpu"
    for part in options.part or PARTS:
        for measured in PARTS[part](small, 2 if small else options.rounds):
            row = {"part": part, "device": device, "torch": torch.__version__, **measured}
            with options.results.open("a") as file:
                file.write(f"{json.dumps(row)}\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
