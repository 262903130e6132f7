"""Contracts of the torch adapters on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from hexloop.adapters.batches.torch.structure import transfer_to
from hexloop.adapters.device.torch import CudaDevice
from hexloop.adapters.snapshots.torch import TorchSnapshots
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.app.testing.contracts.data import BatchesContract
from hexloop.app.testing.contracts.devices import DeviceContract
from hexloop.ports.batches import Batches
from hexloop.ports.device import Device
from tests.contracts import test_torch as on_cpu
from tests.contracts.test_snapshots import OfTensors
from tests.contracts.test_torch import samples

# The suites convert losses to numbers, although they have a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning")

GPU = "cuda:0"
Batch = dict[str, Tensor]


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


class TestTorchTrainable(on_cpu.TestTorchTrainable):
    device_name = GPU


class TestStandardLearner(on_cpu.TestStandardLearnerOnTorch):
    device_name = GPU


class TestStandardLearnerWithDynamicScaling(on_cpu.TestStandardLearnerWithDynamicScaling):
    device_name = GPU


class TestPlainPrecision(on_cpu.TestPlainPrecisionOnTorch):
    device_name = GPU


class TestBf16Precision(on_cpu.TestBf16Precision):
    device_name = GPU


class TestFp16Precision(on_cpu.TestFp16Precision):
    device_name = GPU


class TestTorchaoPrecision(on_cpu.TestTorchaoPrecision):
    device_name = GPU


class TestSingleProcess(on_cpu.TestSingleProcessOnTorch):
    device_name = GPU


class TestTorchLosses(on_cpu.TestTorchLosses):
    device_name = GPU


class TestTorchLossesWithoutFilter(on_cpu.TestTorchLossesWithoutFilter):
    device_name = GPU


class TestRunningLoss(on_cpu.TestRunningLoss):
    device_name = GPU


class TestTorchEvaluator(on_cpu.TestTorchEvaluator):
    device_name = GPU


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


class TestModelState(on_cpu.TestModelState):
    device_name = GPU


class TestFusedAdamWState(on_cpu.TestAdamWState):
    device_name = GPU


class TestMomentumState(on_cpu.TestMomentumState):
    device_name = GPU


class TestTorchLossesState(on_cpu.TestTorchLossesState):
    device_name = GPU


class TestLossScaleState(on_cpu.TestLossScaleState):
    device_name = GPU


class TestAdamWState(on_cpu.OfOptimizers):
    """Its step counters are on the CPU, its moments on the GPU."""

    device_name = GPU

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1)


class TestCapturableAdamState(on_cpu.OfOptimizers):
    device_name = GPU

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)


# Snapshots


class TestTorchSnapshots(OfTensors):
    device_name = GPU


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


@pytest.fixture(params=["room", "no room"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the GPU has room for a copy."""
    if request.param == "no room":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1 << 30))
    return bool(request.param == "room")


def test_a_copy_waits_for_the_update_before_it_and_the_update_after_it_for_the_copy(
    busy: Callable[[], None], room: bool
) -> None:
    """With work queued on the GPU, `take` returns at once, and the copy has the values of the moment of the call."""
    weights: list[Tensor] = [nn.Parameter(torch.zeros(1 << 20, device=GPU)) for _ in range(16)]
    weights.append(nn.Parameter(torch.zeros(64, 32, device=GPU).T))
    snapshots = TorchSnapshots()
    parts = [tensor_part(f"weight.{number}", weight) for number, weight in enumerate(weights)]
    snapshots.reserve({"model": parts})()
    for step in range(1, 6):
        with torch.no_grad():
            busy()
            torch._foreach_zero_(weights)
            torch._foreach_add_(weights, step)
            taken = snapshots.take("model", parts)
            if step > 1:  # the first calls load kernels, for which CUDA waits
                assert not torch.cuda.current_stream().query(), "taking a copy waited for the GPU"
            snapshots.wait_before_update()
            torch._foreach_zero_(weights)
        for part in taken:
            copied = torch.frombuffer(bytearray(part.read()), dtype=torch.float32)
            assert torch.equal(copied, torch.full_like(copied, step))


def test_memory_of_a_staged_copy_is_free_again(room: bool) -> None:
    """A copy takes memory of the GPU only if there is room, and only until it has arrived."""
    weight = torch.ones(1 << 24, device=GPU)
    parts = [tensor_part("weight", weight)]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    (taken,) = TorchSnapshots().take("model", parts)
    taken.read()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before == (weight.nbytes if room else 0)
    assert torch.cuda.memory_allocated() == before
