"""Peak memory and time of a loss in chunks, beside the plain one. Run as `python -m tests.bench.chunked_loss`.

A Llama-like model of one layer, with a vocabulary of 131,072 tokens, takes training steps on one row of each length. A
figure is from a process of its own; memory is what the process holds at most beyond what it held before the first step.
The plain loss and the one in chunks take turns. Limits at 2048 positions: a quarter of the plain one's memory, and 1.1
times its time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
VOCABULARY, WIDTH = 2**17, 256
LENGTHS, ROUNDS, STEPS = (512, 1024, 2048), 3, 3
MEMORY, TIME = 0.25, 1.1


def measure(chunked: bool, length: int, ignored: float) -> dict[str, float]:
    """Return the peak memory in MiB and the seconds of a training step, the first one left out."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from hexloop import Trainer, TrainingArguments
    from hexloop.domain.events import StepBegan, StepEnded

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=max(LENGTHS),
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, VOCABULARY, (STEPS + 1, length))
    labels = tokens.clone()
    labels[:, : int(ignored * length)] = -100
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, labels, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=1, chunked_loss=chunked, use_cpu=True, report_to="none",
            disable_tqdm=True, save_strategy="no", logging_strategy="no", optim="sgd", learning_rate=1e-3,
        )  # fmt: skip
        trainer: Any = Trainer(model, arguments, train_dataset=rows, loggers=[])
        before, seconds, began = resident(), [], 0.0
        for event in trainer.stream():
            if isinstance(event, StepBegan):
                began = time.perf_counter()
            elif isinstance(event, StepEnded):
                seconds.append(time.perf_counter() - began)
    return {"mib": peak() - before, "seconds": median(seconds[1:])}


def resident() -> float:
    """Return the memory of this process in MiB."""
    return _status("VmRSS")


def peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def measured_apart(chunked: bool, length: int, ignored: float) -> dict[str, float]:
    """Return what `measure` returns in a new process."""
    command = [sys.executable, "-m", "tests.bench.chunked_loss", str(int(chunked)), str(length), str(ignored)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the table, and return 1 if a limit is exceeded."""
    print(f"{'positions':>9} {'ignored':>8} {'plain MiB':>10} {'chunks MiB':>10} {'ratio':>6}", end=" ")
    print(f"{'plain s':>8} {'chunks s':>8} {'ratio':>6}")
    exceeded = False
    for length, ignored in (*((each, 0.0) for each in LENGTHS), (max(LENGTHS), 0.75)):
        both: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for chunked, found in both.items():
                found.append(measured_apart(chunked, length, ignored))
        mib = {chunked: median(each["mib"] for each in found) for chunked, found in both.items()}
        seconds = {chunked: median(each["seconds"] for each in found) for chunked, found in both.items()}
        memory, slower = mib[True] / mib[False], seconds[True] / seconds[False]
        print(f"{length:9} {ignored:8.0%} {mib[False]:10.0f} {mib[True]:10.0f} {memory:6.2f}", end=" ")
        print(f"{seconds[False]:8.2f} {seconds[True]:8.2f} {slower:6.2f}", flush=True)
        exceeded |= length == max(LENGTHS) and (memory > MEMORY or slower > TIME)
    return int(exceeded)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    print(json.dumps(measure(sys.argv[1] == "1", int(sys.argv[2]), float(sys.argv[3]))))
