"""The test kit: an answer to every port without a framework, a disk or a network, and a suite of tests for every port.

The fakes run on the standard library, so that training code can be tested in milliseconds. The suites, whose names end
in "Contract", are loaded when they are first used and need the extra `testing` (pytest, hypothesis); an adapter passes
one by a subclass with a fixture, as `hexloop.app.contracts` shows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hexloop.adapters.batches.in_memory import InMemoryBatches, StatefulBatches, StreamedBatches
from hexloop.adapters.clock.manual import ManualClock
from hexloop.adapters.collectives.simulated.faults import Delay, Drop, Kill, RankKilled
from hexloop.adapters.collectives.simulated.outcome import Outcome
from hexloop.adapters.collectives.simulated.world import SimulatedWorld
from hexloop.adapters.collectives.single import SingleProcessCollectives
from hexloop.adapters.device.simulated import SimulatedDevice, SimulatedOutOfMemoryError
from hexloop.adapters.evaluator.least_squares import LeastSquaresEvaluator
from hexloop.adapters.hub.folder import FolderHub
from hexloop.adapters.hub.memory import MemoryHub
from hexloop.adapters.hub.none import NoHub
from hexloop.adapters.interrupts.manual import ManualInterrupts
from hexloop.adapters.interrupts.none import NoInterrupts
from hexloop.adapters.journal.memory import MemoryJournal
from hexloop.adapters.journal.none import NoJournal
from hexloop.adapters.logger.none import NoLogger
from hexloop.adapters.logger.recording import RecordingLogger
from hexloop.adapters.losses.plain import PlainLosses
from hexloop.adapters.parallelism.single import SingleProcess
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.precision.simulated_scaling import SimulatedScaling
from hexloop.adapters.scheduler.constant import ConstantRates
from hexloop.adapters.snapshots.in_memory import InMemorySnapshots
from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.adapters.trainable.least_squares.model import LinearModel
from hexloop.adapters.trainable.least_squares.momentum import MomentumOptimizer
from hexloop.adapters.trainable.least_squares.sharded import (
    LinearShard,
    ShardedLeastSquares,
    sharded_least_squares,
)
from hexloop.adapters.trainable.least_squares.trainable import LeastSquares, least_squares
from hexloop.app.simulated_run import simulated_run

if TYPE_CHECKING:
    from hexloop.app.contracts.batches import BatchesContract
    from hexloop.app.contracts.clock import ClockContract
    from hexloop.app.contracts.collectives import CollectivesContract
    from hexloop.app.contracts.device import DeviceContract
    from hexloop.app.contracts.evaluator import EvaluatorContract
    from hexloop.app.contracts.exportable import ExportableContract
    from hexloop.app.contracts.hub import HubContract
    from hexloop.app.contracts.interrupts import InterruptsContract
    from hexloop.app.contracts.journal import JournalContract
    from hexloop.app.contracts.learner import LearnerContract
    from hexloop.app.contracts.logger import LoggerContract
    from hexloop.app.contracts.losses import LossesContract
    from hexloop.app.contracts.parallelism import ParallelismContract
    from hexloop.app.contracts.precision import PrecisionContract
    from hexloop.app.contracts.scheduler import SchedulerContract
    from hexloop.app.contracts.snapshots import SnapshotsContract
    from hexloop.app.contracts.storage import StorageContract
    from hexloop.app.contracts.trainable import TrainableContract
    from hexloop.app.resume_exactness import assert_resume_exact

__all__ = [
    "BatchesContract",
    "ClockContract",
    "CollectivesContract",
    "ConstantRates",
    "Delay",
    "DeviceContract",
    "Died",
    "Drop",
    "Effect",
    "EvaluatorContract",
    "ExportableContract",
    "Fault",
    "FaultyStorage",
    "FolderHub",
    "HubContract",
    "InMemoryBatches",
    "InMemorySnapshots",
    "InterruptsContract",
    "JournalContract",
    "Kill",
    "LearnerContract",
    "LeastSquares",
    "LeastSquaresEvaluator",
    "LinearModel",
    "LinearShard",
    "LocalStorage",
    "LoggerContract",
    "LossesContract",
    "ManualClock",
    "ManualInterrupts",
    "MemoryHub",
    "MemoryJournal",
    "MemoryStorage",
    "MomentumOptimizer",
    "NoHub",
    "NoInterrupts",
    "NoJournal",
    "NoLogger",
    "Outcome",
    "ParallelismContract",
    "PlainLosses",
    "PlainPrecision",
    "PrecisionContract",
    "RankKilled",
    "RecordingLogger",
    "SchedulerContract",
    "ShardedLeastSquares",
    "SimulatedDevice",
    "SimulatedOutOfMemoryError",
    "SimulatedScaling",
    "SimulatedWorld",
    "SingleProcess",
    "SingleProcessCollectives",
    "SnapshotsContract",
    "StatefulBatches",
    "StorageContract",
    "StreamedBatches",
    "TrainableContract",
    "assert_resume_exact",
    "least_squares",
    "sharded_least_squares",
    "simulated_run",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "assert_resume_exact":
        return import_module("hexloop.app.resume_exactness").assert_resume_exact
    suite = import_module(f"hexloop.app.contracts.{name.removesuffix('Contract').lower()}")
    return getattr(suite, name)


def __dir__() -> list[str]:
    return __all__
