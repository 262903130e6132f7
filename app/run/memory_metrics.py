"""Memory metrics of the stages of a Trainer, by the names of transformers."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from attrs import define, field, frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device

INTERVAL = 0.005
"""Seconds between two readings of the process's memory during a stage."""


class MemoryStages:
    """Measures stages, one at a time: one that starts within another is part of it. This class measures nothing."""

    def start(self, stage: str) -> None:
        """Start to measure, unless another stage is being measured."""

    def end(self, stage: str) -> dict[str, float]:
        """Return the metrics of the stage in bytes; empty if it is part of another."""
        return {}

    def abandon(self, stage: str) -> None:
        """Stop measuring after an error, if the stage has not ended yet."""


@frozen
class _Figures:
    """Bytes in use at the start of a stage, added by its end, and by which its peak exceeded the end."""

    start: int
    allocated: int
    peaked: int


class _ProcessMemory:
    """The resident memory of this process, read by a thread during a stage."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._ended = threading.Event()
        self._peak = 0

    def start(self) -> None:
        self._began_with = self._peak = self._now()
        self._ended.clear()
        reading = weakref.ref(self), self._ended
        self._reader = threading.Thread(target=_read_until, args=reading, name="hexloop reads memory", daemon=True)
        self._reader.start()

    def end(self) -> _Figures:
        self._ended.set()
        self._reader.join()
        now = self._now()
        return _Figures(self._began_with, now - self._began_with, max(0, self._peak - now))

    def read(self) -> None:
        self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        return int(self._process.memory_info().rss)


def _read_until(memory: weakref.ref[_ProcessMemory], ended: threading.Event) -> None:
    """Read repeatedly until the stage has `ended`, or the measurement is garbage-collected."""
    while not ended.wait(INTERVAL):
        reader = memory()
        if reader is None:
            return
        reader.read()
        del reader


@define
class MeasuredMemory(MemoryStages):
    """Measures the memory of the process, and of the device if it has its own.

    The first stage that is measured also reports the metrics of "init". Each stage has
    "<stage>_mem_<cpu or gpu>_alloc_delta", the memory added by its end, and "..._peaked_delta", by which its peak
    exceeded that end; the sum of both is what the stage needed. Names: transformers 5, `Trainer.log_metrics`.
    """

    device: Device
    _stage: str | None = field(default=None, init=False)
    _process: _ProcessMemory = field(factory=_ProcessMemory, init=False)
    _on_device: int = field(default=0, init=False)
    _init: dict[str, _Figures] | None = field(default=None, init=False)

    def start(self, stage: str) -> None:
        """See `MemoryStages.start`."""
        if self._stage is not None:
            return
        self._stage = stage
        self._tidy()
        self.device.forget_peak_memory()
        self._on_device = self.device.memory().used
        self._process.start()

    def end(self, stage: str) -> dict[str, float]:
        """See `MemoryStages.end`."""
        if self._stage != stage:
            return {}
        self._stage = None
        peak = self.device.memory().peak
        self._tidy()
        figures = {"cpu": self._process.end()}
        memory = self.device.memory()
        if memory.total:
            began = self._on_device
            figures["gpu"] = _Figures(began, memory.used - began, max(0, peak - memory.used))
        if stage == "init":
            self._init = figures
            return {}
        metrics = _deltas(stage, figures)
        if self._init is not None:
            before = {f"before_init_mem_{place}": each.start for place, each in self._init.items()}
            metrics = {**_deltas("init", self._init), **metrics, **before}
            self._init = None
        return metrics

    def abandon(self, stage: str) -> None:
        """See `MemoryStages.abandon`."""
        if self._stage == stage:
            self._stage = None
            self._process.end()

    def _tidy(self) -> None:
        gc.collect()
        self.device.release_memory()


@contextmanager
def measured(stages: MemoryStages, stage: str) -> Iterator[dict[str, float]]:
    """Measure the block; the yielded metrics are filled in at its end."""
    figures: dict[str, float] = {}
    stages.start(stage)
    try:
        yield figures
        figures |= stages.end(stage)
    finally:
        stages.abandon(stage)


STAGES = {"__init__": "init", "train": "train", "_inner_training_loop": "train", "evaluate": "eval", "predict": "test"}
"""The stages by the methods of a Trainer that they are named for."""


@frozen
class MemoryTracker:
    """Measures the stage of the method that calls it, with the interface of transformers' memory tracker."""

    stages: MemoryStages

    def start(self) -> None:
        """Start to measure the stage of the calling method."""
        self.stages.start(_stage_of(sys._getframe(1)))

    def stop_and_update_metrics(self, metrics: dict[str, float] | None = None) -> None:
        """Stop to measure the stage of the calling method, and add its figures to `metrics`."""
        figures = self.stages.end(_stage_of(sys._getframe(1)))
        if metrics is not None:
            metrics |= figures


def _stage_of(frame: FrameType) -> str:
    name = frame.f_code.co_name
    return STAGES.get(name, name)


def _deltas(stage: str, figures: dict[str, _Figures]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for place, each in figures.items():
        metrics[f"{stage}_mem_{place}_alloc_delta"] = each.allocated
        metrics[f"{stage}_mem_{place}_peaked_delta"] = each.peaked
    return metrics


def memory_stages_for(
    args: TrainingArguments, device: Device, found: Callable[[str], object] = importlib.util.find_spec
) -> MemoryStages:
    """Return what measures the stages of a Trainer. Raises ConfigurationError if psutil is needed and missing."""
    if args.skip_memory_metrics:
        return MemoryStages()
    if found("psutil") is None:
        raise ConfigurationError(
            "skip_memory_metrics=False needs the package psutil, which is not installed; run `pip install psutil`, or "
            "remove the argument."
        )
    return MeasuredMemory(device)
