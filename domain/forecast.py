"""What a training run will need, computed before it starts: memory, time, steps, tokens and the size of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from attrs import asdict, frozen

from hexloop.domain.triggers import Interval, Plan, Triggers

ROOM = 0.9
"""The share of the free memory above which a peak is reported as a risk: allocators and kernels need some as well."""


@frozen
class StepMemory:
    """Bytes of one process's tensors on its device at the peak of a training step.

    weights: parameters and buffers. gradients, moments: what of the gradients, and of the optimizer's state, exists at
    that moment. activations: everything else, which is what the forward pass keeps for the backward pass, the batch and
    temporary tensors. all_gradients: the gradients when they are complete. counted_by: "fake tensors", or "a real step"
    where torch could not compute without values.
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    all_gradients: int
    counted_by: str

    @property
    def peak(self) -> int:
        """All of it together."""
        return self.weights + self.gradients + self.moments + self.activations

    def sharded(self, processes: int) -> StepMemory:
        """Return the memory of one of so many processes that share weights, gradients and moments evenly."""
        each = [-(-size // processes) for size in (self.weights, self.gradients, self.moments, self.all_gradients)]
        return StepMemory(each[0], each[1], each[2], self.activations, each[3], self.counted_by)


@frozen
class Room:
    """Bytes that are free for tensors. where: the device, or "this machine"."""

    free: int
    where: str


@frozen
class Counts:
    """How often a run does what takes time."""

    steps: int
    evaluations: int
    saves: int


@frozen
class Timing:
    """Seconds that were measured.

    first_step: with everything that happens only once. steps: of each step after it, with the reading of its batch.
    evaluation: of one whole evaluation; save: by how much a save in the background makes a run longer; None if that
    was not measured. end: what follows the last step, which is mostly the last save.
    """

    first_step: float
    steps: tuple[float, ...]
    evaluation: float | None = None
    save: float | None = None
    end: float = 0.0

    @property
    def step(self) -> float:
        """The time of a step: the mean without the slowest and fastest tenth, as a step is sometimes interrupted."""
        cut = len(self.steps) // 10
        kept = sorted(self.steps)[cut : len(self.steps) - cut] or [median(self.steps)]
        return sum(kept) / len(kept)

    def of_run(self, counts: Counts) -> float:
        """Return the seconds of a whole run."""
        seconds = self.first_step + self.step * max(counts.steps - 1, 0) + self.end
        return seconds + (self.evaluation or 0.0) * counts.evaluations + (self.save or 0.0) * max(counts.saves - 1, 0)


@frozen
class Forecast:
    """What a run will need. Sizes are bytes, times are seconds; None for what could not be computed.

    parameters, trainable: values of the whole model. step_memory: of each process. copies: in the memory of the host,
    for saves in the background. checkpoint: all files of one. saved_at_once: the most checkpoints that are kept.
    tokens: of the whole run, as the size of the model's main input, with padding. window: samples of a step of all
    processes. notes: what the forecast does not know, a sentence each. warnings: what will go wrong.
    """

    model: str
    device: str
    precision: str
    parameters: int
    trainable: int
    processes: int
    window: int
    counts: Counts
    epochs: float | None
    samples: int
    tokens: int | None
    step_memory: StepMemory | None
    copies: int
    checkpoint: int | None
    saved_at_once: int | None
    timing: Timing | None
    room: Room | None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The time of the whole run; None if no steps were measured."""
        return None if self.timing is None else self.timing.of_run(self.counts)

    @property
    def disk(self) -> int | None:
        """Bytes that the checkpoints of the run take at most: those kept, and the one that is being written."""
        if self.checkpoint is None or not self.counts.saves:
            return None if self.checkpoint is None else 0
        kept = self.counts.saves if self.saved_at_once is None else min(self.counts.saves, self.saved_at_once + 1)
        return self.checkpoint * kept

    def __str__(self) -> str:
        """The forecast as text."""
        return "\n".join(lines_of(self))

    def document(self) -> dict[str, Any]:
        """Return the forecast in JSON types."""
        found = asdict(self)
        found |= {"seconds": self.seconds, "disk": self.disk}
        if self.step_memory is not None:
            found["step_memory"]["peak"] = self.step_memory.peak
        return found


def counts_of(plan: Plan, triggers: Triggers, evaluates_first: bool) -> Counts:
    """Return how often a run of this plan evaluates and saves, if nothing ends it early.

    With `save_strategy="best"` each evaluation may save, which is then counted.
    """
    total, steps_per_epoch = plan.total_steps, plan.steps_per_epoch

    def times(interval: Interval, every: int, first: float) -> int:
        if interval is Interval.STEPS:  # after the last step in any case
            regular = total // every if every > 0 else 0
            too_early = min((math.ceil(first) - 1) // every, regular) if every > 0 and first > 0 else 0
            last = total >= first and not (every > 0 and total % every == 0)
            return regular - too_early + last
        if interval is Interval.EPOCH:
            if steps_per_epoch is None:  # one epoch
                return int(first <= 1)
            return sum(
                min(epoch * steps_per_epoch, total) / steps_per_epoch >= first
                for epoch in range(1, math.ceil(total / steps_per_epoch) + 1)
            )
        return 0

    evaluations = times(triggers.evaluate.interval, triggers.evaluate.every, triggers.evaluation_delay)
    evaluations += evaluates_first
    best = triggers.save.interval is Interval.BEST
    return Counts(total, evaluations, evaluations if best else times(triggers.save.interval, triggers.save.every, 0.0))


def memory_warnings(memory: StepMemory, copies: int, room: Room | None, on_host: bool) -> Iterator[str]:
    """Yield a warning if the peak is greater than what is free, or close to it.

    on_host: the device computes in the host's memory, in which the copies for saves are as well.
    """
    if room is None:
        return
    peak = memory.peak + (copies if on_host else 0)
    if peak > room.free:
        ratio = peak / max(room.free, 1)
        yield (
            f"{room.where} will run out of memory: a step needs {size_text(peak)} at its peak, {ratio:.1f} times the "
            f"{size_text(room.free)} that are free. {remedy(memory)}"
        )
    elif peak > ROOM * room.free:
        yield (
            f"{room.where} may run out of memory: a step needs {size_text(peak)} at its peak, and "
            f"{size_text(room.free)} are free. {remedy(memory)}"
        )


def remedy(memory: StepMemory) -> str:
    """Return what reduces the largest part of the memory."""
    if memory.activations >= memory.weights + memory.gradients + memory.moments:
        return (
            "Most of it are activations: choose a smaller per_device_train_batch_size with more "
            "gradient_accumulation_steps, or set activation_checkpointing=True."
        )
    if memory.moments >= memory.weights:
        return (
            "Most of it are weights and the optimizer's moments: choose an optimizer with smaller moments, such as "
            "optim='adafactor' or 'adamw_8bit', train adapters (LoRA), or shard the model over processes (fsdp)."
        )
    return "Most of it are weights: train in fewer bits, or shard the model over processes (fsdp)."


UNITS = ("B", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """Return a number of bytes with three digits and a decimal unit."""
    unit, *larger = UNITS
    while size >= 999.5 and larger:
        size, unit = size / 1000, larger.pop(0)
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.3g} {unit}"


def time_text(seconds: float) -> str:
    """Return a duration with two units."""
    if seconds < 0.001:
        return "under 1 ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def lines_of(forecast: Forecast) -> Sequence[str]:
    """Return the forecast as lines of text."""
    each = " of each process" if forecast.processes > 1 else ""
    lines = [
        f"{forecast.model}: {forecast.parameters:,} weights, {forecast.trainable:,} trained, on {forecast.device} in "
        f"{forecast.precision}" + (f", {forecast.processes} processes" if forecast.processes > 1 else ""),
        _length_line(forecast),
    ]
    memory = forecast.step_memory
    if memory is not None:
        lines.append(f"Memory{each}: {size_text(memory.peak)} at the peak of a step, counted by {memory.counted_by}")
        rows = {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer moments": memory.moments,
            "activations and temporary tensors": memory.activations,
        }
        lines += [f"  {name:<34}{size_text(size):>9}" for name, size in rows.items()]
        if memory.all_gradients > memory.gradients:
            lines.append(f"  (all gradients together are {size_text(memory.all_gradients)}, at another moment)")
        if forecast.copies:
            lines.append(f"  copies for saves, on the host     {size_text(forecast.copies):>9}")
    if forecast.room is not None:
        lines.append(f"Free on {forecast.room.where}: {size_text(forecast.room.free)}")
    if forecast.checkpoint is not None:
        disk = forecast.disk
        most = f"; at most {size_text(disk)} on disk" if disk else ""
        lines.append(f"Checkpoint: {size_text(forecast.checkpoint)}; {forecast.counts.saves:,} saves{most}")
    lines += _time_lines(forecast)
    lines += [f"Not known: {note}" for note in forecast.notes]
    lines += [f"Warning: {warning}" for warning in forecast.warnings]
    return lines


def _length_line(forecast: Forecast) -> str:
    counts = forecast.counts
    epochs = "" if forecast.epochs is None else f", {forecast.epochs:.3g} epochs"
    tokens = "" if forecast.tokens is None else f", about {forecast.tokens:,} tokens with padding"
    return (
        f"Length: {counts.steps:,} steps of {forecast.window:,} samples{epochs}, {forecast.samples:,} samples{tokens}, "
        f"{counts.evaluations:,} evaluations"
    )


def _time_lines(forecast: Forecast) -> list[str]:
    timing = forecast.timing
    if timing is None or forecast.seconds is None:
        return []
    measured = f"{len(timing.steps)} measured steps"
    lines = [f"Time: {time_text(forecast.seconds)}, from {measured} of {time_text(timing.step)}"]
    if timing.evaluation is not None and forecast.counts.evaluations:
        lines.append(f"  evaluations                       {time_text(timing.evaluation):>9} each")
    if timing.save is not None and forecast.counts.saves:
        lines.append(f"  saves                             {time_text(timing.save):>9} each, beside the steps")
        lines.append(f"  after the last step               {time_text(timing.end):>9} with the last save")
    return lines
