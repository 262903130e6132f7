"""Cost of resuming with a map-style dataset at steps 10 and 1,000,000. Run as `python -m tests.bench.resume_cost`.

Measured from the call to the first batch of the first step, in a process that has trained before: opening, verifying
and loading the checkpoint, and finding the position in the data. Rounds are interleaved. The log of a million steps,
with an entry every 500, is measured separately. Limits: no more at step 1,000,000 than at step 10 (within noise), and
with the log less than the 0.97 s that transformers needed there.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from hexloop import Trainer, TrainingArguments
from hexloop.domain.events import StepBegan, StepEnded
from tests.bench.first_batch import Line, Numbers

CASES = {"step 10": (10, 0), "step 1,000,000": (1_000_000, 0), "the same with its log": (1_000_000, 2000)}
"""The step, and the number of log entries."""

LONGEST = 2_000_000
BATCH, ROUNDS, GOAL = 8, 21, 0.97


def trainer(folder: Path) -> Trainer:
    """Return a Trainer whose run is longer than any step here."""
    args = TrainingArguments(
        output_dir=str(folder), max_steps=LONGEST, save_strategy="no", use_cpu=True, disable_tqdm=True,
        per_device_train_batch_size=BATCH, report_to="none",
    )  # fmt: skip
    return Trainer(Line(), args, train_dataset=Numbers(LONGEST * BATCH), loggers=[])


def save_at(folder: Path, step: int, entries: int) -> None:
    """Return a checkpoint of that step, as if the run had trained all along."""
    run: Any = trainer(folder)
    with closing(run.stream()) as events:
        for event in events:
            if type(event) is StepBegan:
                state = run._session.run.state
                state.step = state.updates = state.batches = step - 1
                state.position = state.samples = (step - 1) * BATCH
                run._session.run.batches.loader.cursor.current.samples = step * BATCH
                state.history = [{"loss": 1 / at, "epoch": 0.1, "step": 500 * at} for at in range(1, entries + 1)]
            if type(event) is StepEnded:
                run.request_save()
                run.request_stop()


def seconds_to_resume(folder: Path, step: int) -> float:
    """Return the time from the call to the first batch."""
    run = trainer(folder)
    began = time.perf_counter()
    with closing(run.stream(resume_from_checkpoint=True)) as events:
        for event in events:
            if type(event) is StepBegan:
                took = time.perf_counter() - began
                assert event.step == step
                return took
    raise RuntimeError(f"The run in {folder} took no step.")


def main() -> None:
    found: dict[str, list[float]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as parent:
        for case, (step, entries) in CASES.items():
            save_at(Path(parent, case), step, entries)
            seconds_to_resume(Path(parent, case), step)
        for number in range(ROUNDS):
            for case in list(CASES)[:: 1 if number % 2 else -1]:
                found[case].append(seconds_to_resume(Path(parent, case), CASES[case][0]))
    for case, times in found.items():
        print(f"resume at {case:<22}: {median(times):.4f} s ({min(times):.4f} to {max(times):.4f})")
    early, late, logged = map(median, found.values())
    print(f"late over early: {late / early:.2f}; with the log under {GOAL} s: {'yes' if logged < GOAL else 'NO'}")


if __name__ == "__main__":
    main()
