"""Cost of a save: a transformer with 124 million parameters and AdamW on the CPU, compared with transformers.

Run as `python -m tests.bench.save_stall [--rounds 3] [--saves 8]`. Each run is in a new process, and each round runs
the kinds of run in the reverse order of the previous one.

A gap is the time between the ends of two updates. The stall of a save is the longest of the three gaps from its copy
on, because hexloop starts to write in the second of them, minus the run's median gap. Machines stall by themselves, so
the median over the rounds is taken for each save of a run, and the worst of these is reported, together with the same
value around the same steps of runs without saves. The cost per save is the wall time of a run with saves minus that of
the run without saves in the same round: the median over the rounds, because machines drift by more than that between
rounds. It includes the last save up to its last byte, because `train` returns only then. Garbage is collected before
the first step, as transformers' `train` does; otherwise Python traverses all imported objects at some later step, for a
quarter of a second. The write speed is that of the last save, which runs alone; earlier ones run at low priority. The
effect of the disk alone is measured separately: hexloop trains without saves, while another process writes as many
bytes at the same steps.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tests.bench.bytes_alone import Writer

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hexloop", "transformers")
BYTES_ALONE = "the bytes alone"
GOALS = {"stall": 1 / 20, "cost": 1 / 4, "write": 0.7}
MORE = ("wall", "peak")
SEQUENCE, STEPS_PER_SAVE = 16, 16


class Texts(torch.utils.data.Dataset[Any]):
    """`length` random sequences of `sequence` tokens."""

    def __init__(self, length: int, sequence: int = SEQUENCE) -> None:
        self.tokens = torch.randint(0, 50257, (length, sequence), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def train(library: str, folder: str, saving: bool, saves: int) -> dict[str, Any]:
    """Run with that many saves before the last step; return stalls, the median step, wall time and peak memory."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if library != "transformers":
        from hexloop import Trainer, TrainerCallback, TrainingArguments
    else:
        from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[assignment]
    torch.manual_seed(0)
    config = GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    steps = STEPS_PER_SAVE * saves + STEPS_PER_SAVE // 2
    arguments: Any = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=1, use_cpu=True, report_to=[],
        disable_tqdm=True, save_strategy="steps" if saving and library != BYTES_ALONE else "no",
        save_steps=STEPS_PER_SAVE, save_total_limit=2, logging_strategy="no",
    )  # fmt: skip
    ends: list[float] = []
    model = GPT2LMHeadModel(config)
    size = 3 * sum(parameter.nbytes for parameter in model.parameters())  # with AdamW's two moments
    writer = Writer(folder, size, kept=2)

    class Stopwatch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            gc.collect()

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())
            if library == BYTES_ALONE and (len(ends) % STEPS_PER_SAVE == 0 or len(ends) == steps):
                writer.begin()

    trainer: Any = Trainer(model=model, args=arguments, train_dataset=Texts(steps), callbacks=[Stopwatch()])
    began = time.perf_counter()
    with writer:
        trainer.train()
    wall = time.perf_counter() - began
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    saved = range(STEPS_PER_SAVE, steps, STEPS_PER_SAVE)
    around = [[gap - median(gaps) for gap in gaps[step - 1 : step + 2]] for step in saved]
    found = {
        "around": around,
        "stalls": [max(each) for each in around],
        "step": median(gaps),
        "wall": wall,
        "peak": peak,
        "state": size,
    }
    return {**found, "written": last_write(folder)} if library == "hexloop" and saving else found


def last_write(folder: str) -> float:
    """Return the bytes per second of the last save of a run, from its first byte until it is durable."""
    notes = (json.loads(line) for line in Path(folder, ".hexloop/journal.jsonl").read_text().splitlines())
    phases = {note["phase"]: note for note in notes if note["kind"] == "save"}
    seconds: float = phases["written"]["time"] - phases["first_byte"]["time"]
    return float(phases["written"]["bytes"]) / seconds


def write_speed(folder: str) -> tuple[float, float]:
    """Return bytes per second of a snapshot through hexloop's local storage, and of plain writing plus fsync."""
    from hexloop.adapters.snapshots.torch.memory import allocate_like
    from hexloop.adapters.storage.local import LocalStorage

    noise = torch.randint(0, 255, (3 << 28,), dtype=torch.uint8)
    (room,) = allocate_like([noise])
    data = memoryview(room.copy_(noise).numpy().data)
    speeds = []
    for attempt in range(3):
        began = time.perf_counter()
        LocalStorage(folder).write(f"hexloop-{attempt}", [data])
        ours = len(data) / (time.perf_counter() - began)
        began = time.perf_counter()
        with open(os.path.join(folder, f"plain-{attempt}"), "wb", buffering=0) as file:
            for start in range(0, len(data), 1 << 22):
                file.write(data[start : start + (1 << 22)])
            os.fsync(file.fileno())
        speeds.append((ours, len(data) / (time.perf_counter() - began)))
        for name in ("hexloop", "plain"):
            os.unlink(os.path.join(folder, f"{name}-{attempt}"))
    return median(ours for ours, _ in speeds), median(plain for _, plain in speeds)


def measure(library: str, saving: bool, saves: int) -> dict[str, Any]:
    """Run in a new process and a new folder."""
    folder = tempfile.mkdtemp(prefix="hexloop-bench-")
    command = [sys.executable, "-m", "tests.bench.save_stall", "--one", library, folder, str(int(saving)), str(saves)]
    try:
        done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def worst_save(runs: list[dict[str, Any]]) -> float:
    """Return the largest stall of any save, each the median over the runs."""
    worst: float = max(median(stalls) for stalls in zip(*(run["stalls"] for run in runs), strict=True))
    return worst


def by_gap(runs: list[dict[str, Any]]) -> list[float]:
    """Return how much longer the first, second and third gap after a copy are: the median over all saves."""
    return [median(gaps) for gaps in zip(*(around for run in runs for around in run["around"]), strict=True)]


def summary(having: list[dict[str, Any]], without: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of a library, in seconds and bytes, of its runs with and without saves."""
    saves = len(having[0]["stalls"]) + 1  # the last step saves, too
    pairs = list(zip(having, without, strict=True))
    more = {name: median(saving[name] - other[name] for saving, other in pairs) for name in MORE}
    return {
        "step": median(run["step"] for run in having),
        "stall": worst_save(having),
        "unsteadiness": worst_save(without),
        "cost": more["wall"] / saves,
        "peak": more["peak"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=8, help="saves before a run's last step")
    parser.add_argument("--one", nargs=4, metavar=("LIBRARY", "FOLDER", "SAVING", "SAVES"))
    options = parser.parse_args()
    if options.one:
        library, folder, saving, saves = options.one
        print(json.dumps(train(library, folder, bool(int(saving)), int(saves))))
        return
    found: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    kinds = [*itertools.product(LIBRARIES, (True, False)), (BYTES_ALONE, True)]
    for turn in range(options.rounds):
        for library, saving in kinds if turn % 2 == 0 else kinds[::-1]:
            run = measure(library, saving, options.saves)
            found.setdefault((library, saving), []).append(run)
            stalls = ", ".join("/".join(f"{gap:.3f}" for gap in around) for around in run["around"])
            told = f"step {run['step']:.3f} s, stalls {stalls} s, in all {run['wall']:.1f} s"
            print(f"{library}, {'saves' if saving else 'no save'}: {told}", flush=True)
    rows = {library: summary(found[library, True], found[library, False]) for library in LIBRARIES}
    rows[BYTES_ALONE] = summary(found[BYTES_ALONE, True], found["hexloop", False])
    print(f"{'':<20}{'step s':>8}{'stall s':>9}{'without a save s':>18}{'cost a save s':>15}{'peak GB more':>14}")
    for library, row in rows.items():
        print(
            f"{library:<20}{row['step']:>8.3f}{row['stall']:>9.3f}{row['unsteadiness']:>18.3f}{row['cost']:>15.3f}"
            f"{row['peak'] / 1e9:>14.2f}"
        )
    for library in LIBRARIES:
        gaps = ", ".join(f"{gap:.3f}" for gap in by_gap(found[library, True]))
        print(f"{library}: the gaps from a copy on, the median over all saves, less the median step: {gaps} s")
    for name in ("stall", "cost"):
        ratio = rows["hexloop"][name] / rows["transformers"][name]
        print(f"{name}: {ratio:.3f} of transformers'; goal: at most {GOALS[name]:.3f}")
    copies = rows["hexloop"]["peak"] / found["hexloop", True][0]["state"]
    print(f"peak memory: {copies:.2f} copies of the state more; goal: at most one")
    alone = rows[BYTES_ALONE]["cost"] / rows["transformers"]["cost"]
    print(f"cost of the bytes alone: {alone:.3f} of transformers' save")
    with tempfile.TemporaryDirectory(prefix="hexloop-bench-") as folder:
        ours, plain = write_speed(folder)
    written = median(run["written"] for run in found["hexloop", True])
    print(
        f"durable write of a run's last save: {written / plain:.2f} of plain writing; through the storage alone: "
        f"{ours / plain:.2f} ({plain / 1e9:.2f} GB/s); goal: at least {GOALS['write']}"
    )


if __name__ == "__main__":
    main()
