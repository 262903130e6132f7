"""Contracts of the torch adapters on the CPU; `tests/gpu` derives from these suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset

from hexloop.adapters.batches.torch.batches import LoaderBatches
from hexloop.adapters.batches.torch.collate import default_data_collator
from hexloop.adapters.batches.torch.external import ExternalBatches
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.order import OrderedBatchSampler, VectorisedPermutation
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.structure import row_count, transfer_to
from hexloop.adapters.collectives import SingleProcessCollectives
from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.evaluator.torch.evaluator import PredictionStep, TorchEvaluator
from hexloop.adapters.losses.torch import RunningLoss, TorchLosses, TorchWindowValues
from hexloop.adapters.precision.autocast import Bf16Precision, Fp16Precision
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.precision.torchao import TorchaoPrecision
from hexloop.adapters.scheduler.torch.run_schedules import (
    GreedyLR,
    LambdaScheduler,
    MetricScheduler,
    follower_of,
    lambda_of,
)
from hexloop.adapters.scheduler.torch.user_scheduler import TorchScheduler
from hexloop.adapters.trainable.torch.layerwise import LayerwiseProcess
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable
from hexloop.app.testing.contracts.data import BatchesContract, EvaluatorContract
from hexloop.app.testing.contracts.devices import DeviceContract, PrecisionContract
from hexloop.app.testing.contracts.learning import (
    LearnerContract,
    LossesContract,
    SchedulerContract,
    TrainableContract,
    WindowValuesContract,
)
from hexloop.app.testing.contracts.processes import ParallelismContract
from hexloop.app.testing.contracts.state import ExportableContract, Kept
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.loop import StandardLearner
from hexloop.domain.schedules import Linear
from hexloop.ports.batches import Batches, Evaluator
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.learner import Learner, Precision, Scheduler

# The suites convert losses to numbers, although they have a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning")

Batch = dict[str, Tensor]
Result = TypeVar("Result")


class Line(nn.Module):
    """(batch, 3) -> (batch, 1), with a dropout that is off by default."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.outer(self.dropout(torch.tanh(self.inner(x))))
        return {"logits": logits} if labels is None else {"loss": mse_loss(logits, labels), "logits": logits}


def line(dropout: float = 0.0) -> Line:
    """Return a model with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Line(dropout)


def samples(count: int = 10) -> list[Batch]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=source)
    return [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]


WHOLE: Batch = default_data_collator(samples())
WINDOW = [{name: values[start:stop] for name, values in WHOLE.items()} for start, stop in ((0, 4), (4, 9), (9, 10))]


class OnDevice:
    """Models and data on a device, "cpu" if a class does not name another."""

    device_name = "cpu"

    @property
    def kind(self) -> str:
        return torch.device(self.device_name).type

    def line(self, dropout: float = 0.0) -> Line:
        return line(dropout).to(self.device_name)

    def trainable_with(self, make_optimizer: Callable[..., torch.optim.Optimizer], lr: float = 0.01) -> TorchTrainable:
        model = self.line()
        return TorchTrainable(model, make_optimizer(model.parameters(), lr=lr), ModelLoss())

    def placed(self, batch: Batch) -> Batch:
        return {name: values.to(self.device_name) for name, values in batch.items()}


class OnTheWindow(OnDevice):
    """Data of the suites of a training step."""

    def window(self) -> Sequence[Batch]:
        return [self.placed(batch) for batch in WINDOW]

    def whole(self) -> Batch:
        return self.placed(WHOLE)


class TestTorchTrainable(OnTheWindow, TrainableContract[Batch, Tensor]):
    tolerance = 1e-5

    def make(self) -> TorchTrainable:
        return self.trainable_with(torch.optim.AdamW)


class TestStandardLearnerOnTorch(OnTheWindow, LearnerContract[Batch, Tensor]):
    tolerance = 1e-4

    def make(self) -> Learner[Batch, Tensor]:
        return self.on(self.trainable_with(torch.optim.AdamW))

    def make_frozen(self) -> Learner[Batch, Tensor]:
        return self.on(self.trainable_with(torch.optim.AdamW, lr=0.0))

    def on(self, trainable: TorchTrainable) -> Learner[Batch, Tensor]:
        """Return a learner that trains this model."""
        return StandardLearner(trainable, PlainPrecision(), SingleProcess())


class TestStandardLearnerWithDynamicScaling(TestStandardLearnerOnTorch):
    tolerance = 2e-2

    def on(self, trainable: TorchTrainable) -> Learner[Batch, Tensor]:
        precision = Fp16Precision(self.kind, initial_scale=1024.0)
        return StandardLearner(trainable, precision, SingleProcess())


class OnTorch(OnDevice, PrecisionContract[Batch, Tensor]):
    """A precision on the small model."""

    def trainable(self) -> TorchTrainable:
        return self.trainable_with(torch.optim.SGD)

    def batch(self) -> Batch:
        return self.placed(WHOLE)


class TestPlainPrecisionOnTorch(OnTorch):
    def make(self) -> Precision[Tensor]:
        return PlainPrecision()


class TestBf16Precision(OnTorch):
    tolerance = 3e-2

    def make(self) -> Precision[Tensor]:
        return Bf16Precision(self.kind)


class TestFp16Precision(OnTorch):
    tolerance = 1e-2

    def make(self) -> Precision[Tensor]:
        return Fp16Precision(self.kind, initial_scale=1024.0)


class TestTorchaoPrecision(OnTorch):
    """The layers of the model that is trained are too small for 8 bits; those of `model` are not."""

    tolerance = 3e-2

    def make(self) -> Precision[Tensor]:
        pytest.importorskip("torchao")
        return TorchaoPrecision(self.kind, emulates=True)

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(16, 16, device=self.device_name) for _ in range(3)))

    def layers(self, model: nn.Module) -> list[Any]:
        kinds = [type(each).__name__ for each in model.children()]
        assert kinds == ["Linear", "Float8Linear", "Linear"]
        return list(model.modules())


class TestSingleProcessOnTorch(OnDevice, ParallelismContract[nn.Module, Batch, Tensor]):
    tolerance = 1e-5

    def make(self) -> SingleProcess:
        return SingleProcess()

    def model(self) -> nn.Module:
        return self.line()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def trainable(self, model: nn.Module, optimizer: Any) -> TorchTrainable:
        return TorchTrainable(model, optimizer, ModelLoss())

    def batch(self) -> Batch:
        return self.placed(WHOLE)


class TestLayerwiseProcess(TestSingleProcessOnTorch):
    def make(self) -> Any:
        return LayerwiseProcess()


class TestTorchLosses(OnDevice, LossesContract[Tensor]):
    def make(self) -> TorchLosses:
        return TorchLosses(self.device_name)

    def loss(self, value: float) -> Tensor:
        return torch.tensor(value, device=self.device_name)


class TestTorchLossesWithoutFilter(TestTorchLosses):
    def make(self) -> TorchLosses:
        return TorchLosses(self.device_name, filter_nan=False)


class TestRunningLoss(OnDevice, LossesContract[Tensor]):
    def make(self) -> RunningLoss:
        return RunningLoss(self.device_name, True, lambda: 0)

    def loss(self, value: float) -> Tensor:
        return torch.tensor(value, device=self.device_name)


class TestCpuDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return CpuDevice()

    def draw(self, device: Device) -> float:
        return float(torch.rand(()))

    def out_of_memory(self, device: Device) -> BaseException:
        with pytest.raises(RuntimeError) as raised:
            torch.empty(2**60, dtype=torch.uint8)
        return raised.value


class TestTorchEvaluator(OnDevice, EvaluatorContract[Batch]):
    @pytest.fixture
    def evaluator(self) -> Evaluator[Batch]:
        self.model = self.line(dropout=0.5)
        loader: DataLoader[Any] = DataLoader(cast(Any, samples()), batch_size=4, collate_fn=default_data_collator)
        compute = ModelLoss()
        step = PredictionStep(compute, lambda forward: forward)
        return TorchEvaluator(self.model, loader, step, transfer_to(self.device_name), row_count)

    def in_training(self, evaluator: Evaluator[Batch]) -> bool:
        return self.model.training

    @pytest.mark.parametrize("loss_only", [True, False])
    def test_only_a_loss_alone_is_computed_without_logits(self, loss_only: bool) -> None:
        def compute(model: Any, inputs: Any, return_outputs: bool) -> Any:
            assert inputs.get("skip_logits", False) == loss_only
            return torch.ones(()), (None, inputs["x"])

        step = PredictionStep(compute, lambda forward: forward, without_logits={"skip_logits": True})
        batch = {"x": torch.ones(2), "labels": torch.ones(2)}
        loss, logits, labels = step(nn.Linear(1, 1), batch, loss_only)
        assert loss == 1
        assert (logits is None, labels is None, set(batch)) == (loss_only, loss_only, {"x", "labels"})


# Data


class OfSamples(BatchesContract[Batch]):
    def samples(self, batch: Batch) -> list[object]:
        return [tuple(row.tolist()) for row in batch["x"]]


def ordered(count: int, size: int, drop_last: bool = False, workers: int = 0) -> LoaderBatches:
    data = samples(count)
    sampler = OrderedBatchSampler(lambda epoch: VectorisedPermutation(7, epoch, count), size, drop_last)
    loader = OrderedLoader(data, sampler, collate_fn=default_data_collator, num_workers=workers)
    return LoaderBatches(loader, transfer_to("cpu"))


class TestOrderedLoader(OfSamples):
    def make(self) -> Batches[Batch]:
        return ordered(10, 3)


class TestOrderedLoaderWithoutTheLastBatch(OfSamples):
    def make(self) -> Batches[Batch]:
        return ordered(10, 3, drop_last=True)

    def test_lengths_match_an_epoch(self, batches: Batches[Batch]) -> None:
        """The samples of the last batch, which is dropped, count as samples of the data set but not of an epoch."""
        read = self.read(batches, 0)

        assert batches.batches_per_epoch() == len(read) == 3
        assert batches.samples_per_epoch() in (9, 10)


@pytest.mark.matrix
class TestOrderedLoaderWithWorkers(OfSamples):
    def make(self) -> Batches[Batch]:
        return ordered(9, 3, workers=1)


class Rows(IterableDataset[Batch]):
    """An iterable data set."""

    def __iter__(self) -> Iterator[Batch]:
        yield from samples()


class TestStreamLoader(OfSamples):
    def make(self) -> Batches[Batch]:
        return LoaderBatches(StreamLoader(Rows(), batch_size=3, collate_fn=default_data_collator), transfer_to("cpu"))


@pytest.mark.matrix
class TestStreamLoaderWithAWorker(OfSamples):
    def make(self) -> Batches[Batch]:
        loader = StreamLoader(Rows(), batch_size=3, collate_fn=default_data_collator, num_workers=1)
        return LoaderBatches(loader, transfer_to("cpu"))


class TestUsersLoader(OfSamples):
    def make(self) -> Batches[Batch]:
        loader: DataLoader[Any] = DataLoader(cast(Any, samples()), batch_size=3, collate_fn=default_data_collator)
        return ExternalBatches(loader, transfer_to("cpu"))


# State kept between steps


class InOneProcess(OnDevice, ExportableContract[Kept]):
    """A world of one process."""

    def run(self, size: int, function: Callable[[Collectives], Result]) -> list[Result]:
        return [function(SingleProcessCollectives())]


class TestModelState(InOneProcess[ModelState]):
    def make(self, collectives: Collectives) -> ModelState:
        self.models: dict[int, Line] = getattr(self, "models", {})
        model = self.line()
        state = ModelState(model)
        self.models[id(state)] = model
        self.kept = [*getattr(self, "kept", []), state]
        return state

    def advance(self, kept: ModelState) -> None:
        with torch.no_grad():
            for tensor in self.models[id(kept)].state_dict().values():
                tensor.add_(1)


class OfOptimizers(InOneProcess[OptimizerState]):
    """Base class for tests of the optimizer that `optimizer` returns."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        raise NotImplementedError

    def make(self, collectives: Collectives) -> OptimizerState:
        model = self.line()
        optimizer = self.optimizer(model)
        state = OptimizerState(model, optimizer)
        self.kept = [*getattr(self, "kept", []), (state, model, optimizer)]
        # An optimizer creates its moments at its first step; before that no state can be missing.
        self.advance(state)
        return state

    def advance(self, kept: OptimizerState) -> None:
        _, model, optimizer = next(each for each in self.kept if each[0] is kept)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9


class TestAdamWState(OfOptimizers):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


class TestMomentumState(OfOptimizers):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class TestTorchLossesState(InOneProcess[TorchLosses]):
    def make(self, collectives: Collectives) -> TorchLosses:
        return TorchLosses(self.device_name)

    def advance(self, kept: TorchLosses) -> None:
        for value in range(40):
            kept.add(torch.tensor(0.1 * value, device=self.device_name))


class TestLossScaleState(InOneProcess[Fp16Precision]):
    def make(self, collectives: Collectives) -> Fp16Precision:
        return Fp16Precision(self.kind, initial_scale=1024.0)

    def advance(self, kept: Fp16Precision) -> None:
        model = self.line()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss: Any = kept.scale(kept.wrap(model)(**self.placed(WHOLE))["loss"])
        loss.backward()
        kept.unscale(cast(Any, optimizer))
        kept.step(cast(Any, optimizer))


# Schedulers


class OfTorchSchedulers(SchedulerContract):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        raise NotImplementedError

    def adapter_for(self, scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
        return TorchScheduler(scheduler, optimizer, BestMetric("loss"))

    def make(self) -> Scheduler:
        first, second = (nn.Parameter(torch.ones(1)) for _ in range(2))
        optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.02}])
        optimizer.step()  # torch's schedulers warn if they step before their optimizer
        adapter: Scheduler = self.adapter_for(self.scheduler_for(optimizer), optimizer)
        return adapter

    def rates_in_force(self, scheduler: Scheduler) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in cast(Any, scheduler).scheduler.optimizer.param_groups)


class TestTorchExponentialSchedule(OfTorchSchedulers):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.step()
        return scheduler


class TestTorchPlateauSchedule(OfTorchSchedulers):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)


class TestLambdaSchedule(OfTorchSchedulers):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        return lambda_of(Linear(num_warmup_steps=2, num_training_steps=6), optimizer)

    def adapter_for(self, scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
        return LambdaScheduler(scheduler)


class TestPlateauOfARun(OfTorchSchedulers):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        return follower_of("reduce_lr_on_plateau", {"patience": 1, "cooldown": 1}, optimizer)

    def adapter_for(self, scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
        return MetricScheduler(scheduler, BestMetric("loss"))


GREEDY: dict[str, Any] = {"patience": 0, "smooth": True, "window_size": 2, "min_lr": 1e-5, "reset_start": 2}


class TestGreedyOfARun(TestPlateauOfARun):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        return follower_of("greedy", GREEDY, optimizer)


class TestGreedyWithoutTransformers(TestPlateauOfARun):
    def scheduler_for(self, optimizer: torch.optim.Optimizer) -> Any:
        return GreedyLR(optimizer, **GREEDY)


class TestTorchWindowValues(WindowValuesContract[Tensor]):
    def make(self) -> TorchWindowValues:
        return TorchWindowValues()

    def loss(self, value: float) -> Tensor:
        return torch.tensor(value)

    def norm(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.bfloat16 if value < 256 else torch.float32)


class TestTorchWindowValuesOfMixedNumbers(TestTorchWindowValues):
    """Losses of several shapes and types, and norms as DeepSpeed returns them."""

    def loss(self, value: float) -> Tensor:
        return torch.full((1,), value, dtype=torch.float64) if value % 2 == 0 else torch.tensor(value)

    def norm(self, value: float) -> Any:
        return value
