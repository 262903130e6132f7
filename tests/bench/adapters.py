"""Cost, stall and size of a save of adapters on a base of 4 bits, compared with transformers.

Run as `python -m tests.bench.adapters [--rounds 3] [--saves 6]`. A model like Llama with 20 million parameters, loaded
in 4 bits by bitsandbytes, is trained on the CPU with LoRA. Each run is in a new process, and each round runs the kinds
of run in the reverse order of the previous one.

A gap is the time between the ends of two updates. The stall of a save is the longest of the three gaps from its copy
on, minus the run's median gap; the median over the rounds is taken for each save, and the worst of these is reported.
The cost per save is the wall time of a run with saves minus that of the run without saves in the same round: the median
over the rounds. It includes the last save up to its last byte, because `train` returns only then. hexloop's saves also
flush their files to the disk, and it reads the base once, for its digest.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hexloop", "transformers")
SEQUENCE, STEPS_PER_SAVE, VOCABULARY = 16, 8, 4000


def make_base(folder: str) -> None:
    """Save a base of 20 million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=16, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def adapted(base: str) -> Any:
    """Return the base in 4 bits with adapters of LoRA."""
    import peft
    import transformers

    make: Any = transformers.BitsAndBytesConfig
    config = make(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = transformers.AutoModelForCausalLM.from_pretrained(base, quantization_config=config, device_map="cpu")
    model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))


def train(library: str, base: str, folder: str, saves: int, saving: bool, **further: Any) -> dict[str, Any]:
    """Return the stalls, the wall time and the size of the last checkpoint of a run, long enough for so many saves."""
    if library == "hexloop":
        from hexloop import Trainer, TrainerCallback, TrainingArguments
    else:
        from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[assignment]
    steps = STEPS_PER_SAVE * saves + STEPS_PER_SAVE // 2
    arguments: Any = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=1, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="steps" if saving else "no", save_steps=STEPS_PER_SAVE,
        save_total_limit=2, logging_strategy="no", **further,
    )  # fmt: skip
    tokens = torch.randint(0, VOCABULARY, (512, SEQUENCE), generator=torch.Generator().manual_seed(1))
    ends: list[float] = []

    class Watch(TrainerCallback):
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    trainer: Any = Trainer(
        model=adapted(base),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[Watch()],
    )
    gc.collect()
    began = time.perf_counter()
    trainer.train()
    wall = time.perf_counter() - began
    gaps = [second - first for first, second in itertools.pairwise(ends)]
    usual = median(gaps)
    copies = [STEPS_PER_SAVE * (number + 1) - 1 for number in range(saves)]
    stalls = [max(gaps[at : at + 3]) - usual for at in copies]
    newest = max(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    files = [] if newest is None else [path for path in newest.rglob("*") if path.is_file()]
    return {"stalls": stalls, "wall": wall, "step": usual, "bytes": sum(path.stat().st_size for path in files)}


def in_new_process(*arguments: str) -> dict[str, Any]:
    """Return the figures of a run in a process of its own."""
    folder = tempfile.mkdtemp(prefix="hexloop-bench-")
    try:
        command = [sys.executable, "-m", "tests.bench.adapters", "--one", *arguments, "--folder", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(rounds: int, saves: int) -> None:
    """Print the figures of both libraries."""
    with tempfile.TemporaryDirectory(prefix="hexloop-bench-") as base:
        make_base(base)
        kinds = [(library, how) for library in LIBRARIES for how in ("--saving", "--not-saving")]
        found: dict[tuple[str, str], list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for each in range(rounds):
            for library, how in kinds if each % 2 else kinds[::-1]:
                run = in_new_process("--library", library, "--base", base, "--saves", str(saves), how)
                found[library, how].append(run)
        full = in_new_process("--library", "hexloop", "--base", base, "--saves", "1", "--saving", "--full")
    for library in LIBRARIES:
        runs = found[library, "--saving"]
        stall = max(median(run["stalls"][number] for run in runs) for number in range(saves))
        pairs = zip(runs, found[library, "--not-saving"], strict=True)
        cost = median((run["wall"] - alone["wall"]) / saves for run, alone in pairs)
        step = median(run["step"] for run in runs)
        print(
            f"{library}: a save costs {1e3 * cost:.1f} ms and stalls a step of {1e3 * step:.1f} ms by at most "
            f"{1e3 * stall:.1f} ms; a checkpoint has {runs[0]['bytes'] / 1e3:.0f} kB"
        )
    print(f"with save_full_model=True, a checkpoint of hexloop has {full['bytes'] / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=6)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    for name in ("--library", "--base", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--saving", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--not-saving", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if not options.one:
        compare(options.rounds, options.saves)
        return
    further: dict[str, Any] = {"save_full_model": True} if options.full else {}
    print(json.dumps(train(options.library, options.base, options.folder, options.saves, options.saving, **further)))


if __name__ == "__main__":
    main()
