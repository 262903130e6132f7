"""The public names of hexloop.testing, each with the module that defines it."""

from .adapters.background import InlineBackground as InlineBackground
from .adapters.batches import (
    InMemoryBatches as InMemoryBatches,
    StatefulBatches as StatefulBatches,
    StreamedBatches as StreamedBatches,
)
from .adapters.clock import ManualClock as ManualClock
from .adapters.collectives.simulated import Delay as Delay, Drop as Drop, Kill as Kill, RankKilled as RankKilled
from .adapters.collectives.simulated import Outcome as Outcome
from .adapters.collectives.simulated import SimulatedWorld as SimulatedWorld
from .adapters.collectives import SingleProcessCollectives as SingleProcessCollectives
from .adapters.device.simulated import (
    SimulatedDevice as SimulatedDevice,
    SimulatedOutOfMemoryError as SimulatedOutOfMemoryError,
)
from .adapters.evaluator import LeastSquaresEvaluator as LeastSquaresEvaluator
from .adapters.hub import FolderHub as FolderHub, MemoryHub as MemoryHub, NoHub as NoHub
from .adapters.interrupts import ManualInterrupts as ManualInterrupts, NoInterrupts as NoInterrupts
from .adapters.journal import MemoryJournal as MemoryJournal, NoJournal as NoJournal
from .adapters.logger import NoLogger as NoLogger, RecordingLogger as RecordingLogger
from .adapters.machine import SimulatedMachine as SimulatedMachine
from .adapters.losses import PlainLosses as PlainLosses
from .adapters.engines.single.engine import SingleProcess as SingleProcess
from .adapters.precision.plain import PlainPrecision as PlainPrecision
from .adapters.precision.simulated_scaling import SimulatedScaling as SimulatedScaling
from .adapters.scheduler import ConstantRates as ConstantRates
from .adapters.search.drawing import GridSearch as GridSearch, RandomSearch as RandomSearch
from .adapters.search.drawing import ScriptedSearch as ScriptedSearch
from .adapters.signatures import HmacSignatures as HmacSignatures
from .adapters.snapshots import InMemorySnapshots as InMemorySnapshots
from .adapters.storage.faults import Died as Died, Effect as Effect, Fault as Fault, FaultyStorage as FaultyStorage
from .adapters.storage.local import LocalStorage as LocalStorage
from .adapters.storage.memory import MemoryStorage as MemoryStorage
from .adapters.trainable.least_squares import LinearModel as LinearModel
from .adapters.trainable.least_squares import MomentumOptimizer as MomentumOptimizer
from .adapters.trainable.least_squares import LeastSquares as LeastSquares, least_squares as least_squares
from .adapters.trainable.least_squares.sharded import (
    LinearShard as LinearShard,
    ShardedLeastSquares as ShardedLeastSquares,
    sharded_least_squares as sharded_least_squares,
)
from .app.testing.contracts.environment import BackgroundContract as BackgroundContract
from .app.testing.contracts.data import BatchesContract as BatchesContract, EvaluatorContract as EvaluatorContract
from .app.testing.contracts.environment import ClockContract as ClockContract
from .app.testing.contracts.processes import CollectivesContract as CollectivesContract
from .app.testing.contracts.devices import DeviceContract as DeviceContract, PrecisionContract as PrecisionContract
from .app.testing.contracts.processes import EngineContract as EngineContract
from .app.testing.contracts.state import ExportableContract as ExportableContract
from .app.testing.contracts.storage import HubContract as HubContract, StorageContract as StorageContract
from .app.testing.contracts.environment import InterruptsContract as InterruptsContract
from .app.testing.contracts.environment import JournalContract as JournalContract
from .app.testing.contracts.learning import LearnerContract as LearnerContract
from .app.testing.contracts.environment import LoggerContract as LoggerContract
from .app.testing.contracts.learning import LossesContract as LossesContract
from .app.testing.contracts.environment import MachineContract as MachineContract
from .app.testing.contracts.processes import ParallelismContract as ParallelismContract
from .app.testing.contracts.learning import SchedulerContract as SchedulerContract
from .app.testing.contracts.search import SearchContract as SearchContract
from .app.testing.contracts.environment import SignaturesContract as SignaturesContract
from .app.testing.contracts.state import SnapshotsContract as SnapshotsContract
from .app.testing.contracts.learning import TrainableContract as TrainableContract
from .app.testing.resume_exactness import assert_resume_exact as assert_resume_exact
from .app.testing.simulated_run import simulated_run as simulated_run

__all__: list[str]
