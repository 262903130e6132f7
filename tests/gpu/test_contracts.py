"""Contracts of the torch adapters on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hexloop.adapters.batches.torch.batches import LoaderBatches
from hexloop.adapters.batches.torch.collate import default_data_collator
from hexloop.adapters.batches.torch.external import ExternalBatches
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.order import OrderedBatchSampler, VectorisedPermutation
from hexloop.adapters.batches.torch.structure import row_count, transfer_to
from hexloop.adapters.device.torch import CudaDevice
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.evaluator.torch.evaluator import PredictionStep, TorchEvaluator
from hexloop.adapters.losses.torch import RunningLoss, TorchLosses
from hexloop.adapters.precision.autocast import Bf16Precision, Fp16Precision
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.snapshots.torch import TorchSnapshots
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable
from hexloop.app.testing.contracts.data import BatchesContract, EvaluatorContract
from hexloop.app.testing.contracts.devices import DeviceContract, PrecisionContract
from hexloop.app.testing.contracts.learning import LearnerContract, LossesContract, TrainableContract
from hexloop.app.testing.contracts.processes import ParallelismContract
from hexloop.app.testing.contracts.state import SnapshotsContract
from hexloop.domain.loop import StandardLearner
from hexloop.ports.batches import Batches
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.evaluator import Evaluator
from hexloop.ports.learner import Learner
from hexloop.ports.precision import Precision
from hexloop.ports.snapshots import Snapshots
from hexloop.ports.state import Part
from tests.contracts.test_snapshots import TENSORS
from tests.contracts.test_torch import InOneProcess, Line, line, samples

# The suites convert losses to numbers, although they have a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning")

GPU = "cuda:0"
Batch = dict[str, Tensor]


def on_gpu(batch: Batch) -> Batch:
    return {name: values.to(GPU) for name, values in batch.items()}


def whole() -> Batch:
    return on_gpu(default_data_collator(samples()))


def window() -> list[Batch]:
    """Return the samples in three batches of different sizes."""
    batch = whole()
    return [{name: values[start:stop] for name, values in batch.items()} for start, stop in ((0, 4), (4, 9), (9, 10))]


def trainable(make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> TorchTrainable:
    model = line().to(GPU)
    return TorchTrainable(model, make_optimizer(model.parameters(), lr=0.01), ModelLoss())


class TestCudaDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return CudaDevice()

    def draw(self, device: Device) -> float:
        return float(torch.rand((), device=device.name) + torch.rand(()))

    def out_of_memory(self, device: Device) -> BaseException:
        with pytest.raises(RuntimeError) as raised:
            torch.empty(2**50, dtype=torch.uint8, device=device.name)
        return raised.value

    def test_it_measures_memory(self, device: Device) -> None:
        """A tensor counts as memory in use while it exists, and in the peak until that is reset."""
        device.forget_peak_memory()
        before = device.memory()
        tensor = torch.zeros(1 << 24, dtype=torch.uint8, device=device.name)
        during = device.memory()
        del tensor
        after = device.memory()
        device.forget_peak_memory()

        assert during.used - before.used == during.peak - before.peak == after.peak - before.peak == 1 << 24
        assert after.used == before.used == device.memory().peak
        assert device.memory().total == torch.cuda.get_device_properties(0).total_memory


class OnTheGpu:
    """Data of the suites of a training step."""

    def window(self) -> Sequence[Batch]:
        return window()

    def whole(self) -> Batch:
        return whole()


class TestTorchTrainable(OnTheGpu, TrainableContract[Batch, Tensor]):
    tolerance = 1e-5

    def make(self) -> TorchTrainable:
        return trainable()


class TestStandardLearner(OnTheGpu, LearnerContract[Batch, Tensor]):
    tolerance = 1e-4

    def make(self) -> Learner[Batch, Tensor]:
        return StandardLearner(trainable(), PlainPrecision(), SingleProcess())


class TestStandardLearnerWithDynamicScaling(TestStandardLearner):
    tolerance = 2e-2

    def make(self) -> Learner[Batch, Tensor]:
        return StandardLearner(trainable(), Fp16Precision("cuda", initial_scale=1024.0), SingleProcess())


class OnGpu(PrecisionContract[Batch, Tensor]):
    """A precision on the small model."""

    def trainable(self) -> TorchTrainable:
        return trainable(torch.optim.SGD)

    def batch(self) -> Batch:
        return whole()


class TestPlainPrecision(OnGpu):
    def make(self) -> Precision[Tensor]:
        return PlainPrecision()


class TestBf16Precision(OnGpu):
    tolerance = 3e-2

    def make(self) -> Precision[Tensor]:
        return Bf16Precision("cuda")


class TestFp16Precision(OnGpu):
    tolerance = 1e-2

    def make(self) -> Precision[Tensor]:
        return Fp16Precision("cuda", initial_scale=1024.0)


class TestSingleProcess(ParallelismContract[nn.Module, Batch, Tensor]):
    tolerance = 1e-5

    def make(self) -> SingleProcess:
        return SingleProcess()

    def model(self) -> nn.Module:
        return line().to(GPU)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def trainable(self, model: nn.Module, optimizer: Any) -> TorchTrainable:
        return TorchTrainable(model, optimizer, ModelLoss())

    def batch(self) -> Batch:
        return whole()


class TestTorchLosses(LossesContract[Tensor]):
    def make(self) -> TorchLosses:
        return TorchLosses(GPU)

    def loss(self, value: float) -> Tensor:
        return torch.tensor(value, device=GPU)


class TestRunningLoss(TestTorchLosses):
    def make(self) -> Any:
        return RunningLoss(GPU, True, lambda: 0)


class TestTorchEvaluator(EvaluatorContract[Batch]):
    @pytest.fixture
    def evaluator(self) -> Evaluator[Batch]:
        self.model = line(dropout=0.5).to(GPU)
        loader: DataLoader[Any] = DataLoader(cast(Any, samples()), batch_size=4, collate_fn=default_data_collator)
        step = PredictionStep(ModelLoss(), lambda forward: forward)
        return TorchEvaluator(self.model, loader, step, transfer_to(GPU), row_count)

    def in_training(self, evaluator: Evaluator[Batch]) -> bool:
        return self.model.training


# Data


class OfSamples(BatchesContract[Batch]):
    """Batches whose tensors must be on the GPU."""

    def samples(self, batch: Batch) -> list[object]:
        assert {values.device for values in batch.values()} == {torch.device(GPU)}
        return [tuple(row.tolist()) for row in batch["x"]]


class TestOrderedLoader(OfSamples):
    workers, pinned = 0, False

    def make(self) -> Batches[Batch]:
        sampler = OrderedBatchSampler(lambda epoch: VectorisedPermutation(7, epoch, 10), 3, False)
        loader = OrderedLoader(
            samples(),
            sampler,
            collate_fn=default_data_collator,
            num_workers=self.workers,
            pin_memory=self.pinned,
        )
        return LoaderBatches(loader, transfer_to(GPU))


class TestOrderedLoaderWithPinnedMemory(TestOrderedLoader):
    pinned = True


class TestOrderedLoaderWithAWorkerAndPinnedMemory(TestOrderedLoader):
    workers, pinned = 1, True


class TestUsersLoader(OfSamples):
    def make(self) -> Batches[Batch]:
        loader: DataLoader[Any] = DataLoader(
            cast(Any, samples()), batch_size=3, collate_fn=default_data_collator, pin_memory=True
        )
        return ExternalBatches(loader, transfer_to(GPU))


# State kept between steps


class TestModelState(InOneProcess[ModelState]):
    def make(self, collectives: Collectives) -> ModelState:
        self.models: dict[int, Line] = getattr(self, "models", {})
        model = line().to(GPU)
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
        model = line().to(GPU)
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


class TestFusedAdamWState(OfOptimizers):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


class TestAdamWState(OfOptimizers):
    """Its step counters are on the CPU, its moments on the GPU."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1)


class TestCapturableAdamState(OfOptimizers):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)


class TestMomentumState(OfOptimizers):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class TestTorchLossesState(InOneProcess[TorchLosses]):
    def make(self, collectives: Collectives) -> TorchLosses:
        return TorchLosses(GPU)

    def advance(self, kept: TorchLosses) -> None:
        for value in range(40):
            kept.add(torch.tensor(0.1 * value, device=GPU))


class TestLossScaleState(InOneProcess[Fp16Precision]):
    def make(self, collectives: Collectives) -> Fp16Precision:
        return Fp16Precision("cuda", initial_scale=1024.0)

    def advance(self, kept: Fp16Precision) -> None:
        model = line().to(GPU)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss: Any = kept.scale(kept.wrap(model)(**whole())["loss"])
        loss.backward()
        kept.unscale(cast(Any, optimizer))
        kept.step(cast(Any, optimizer))


# Snapshots


class TestTorchSnapshots(SnapshotsContract):
    """Tensors of every layout, in the GPU's memory."""

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        return TorchSnapshots()

    def make_values(self) -> Any:
        return [tensor.to(GPU, memory_format=torch.preserve_format) for tensor in TENSORS]

    def parts_of(self, values: Any) -> list[Part]:
        return [tensor_part(f"layer.{number}", tensor) for number, tensor in enumerate(values)]

    def change(self, values: Any) -> None:
        for tensor in values:
            if tensor.dtype is torch.bool:
                tensor.logical_not_()
            else:
                tensor.neg_().sub_(1)


@pytest.fixture
def busy() -> Iterator[Callable[[], None]]:
    """Return a function that enqueues work for tens of milliseconds, so that what follows it has not begun yet."""
    matrix = torch.ones(8192, 8192, device=GPU)

    def keep_busy() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix)

    keep_busy()
    torch.cuda.synchronize()
    yield keep_busy
    torch.cuda.synchronize()


def test_a_copy_waits_for_the_update_before_it_and_the_update_after_it_for_the_copy(busy: Callable[[], None]) -> None:
    """With work queued on the GPU, `take` returns at once, and the copy has the values of the moment of the call."""
    weight = nn.Parameter(torch.zeros(1 << 24, device=GPU))
    snapshots = TorchSnapshots()
    parts = [tensor_part("weight", weight)]
    snapshots.reserve({"model": parts})()
    for step in range(1, 6):
        with torch.no_grad():
            busy()
            weight.fill_(step)
            (taken,) = snapshots.take("model", parts)
            if step > 1:  # the first calls load kernels, for which CUDA waits
                assert not torch.cuda.current_stream().query(), "taking a copy waited for the GPU"
            snapshots.wait_before_update()
            weight.fill_(-1.0)
        copied = torch.frombuffer(bytearray(taken.read()), dtype=torch.float32)
        assert torch.equal(copied, torch.full_like(copied, step))
