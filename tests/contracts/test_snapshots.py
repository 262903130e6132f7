"""Contract of the Snapshots port, and the reuse and alignment of memory in torch snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hexloop.adapters.snapshots import InMemorySnapshots
from hexloop.adapters.snapshots.torch import PIECE, TorchSnapshots
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.app.testing.contracts.state import SnapshotsContract
from hexloop.ports.state import Part, Snapshots
from hexloop.ports.storage import PAGE


def reading(data: bytearray) -> Callable[[], memoryview]:
    """Return a reader of these bytes as they are when it is called."""
    return lambda: memoryview(data)


class TestInMemorySnapshots(SnapshotsContract):
    """Bytes in ordinary memory."""

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        return InMemorySnapshots()

    def make_values(self) -> Any:
        return [bytearray(b"first123"), bytearray(b"second45")]

    def parts_of(self, values: Any) -> list[Part]:
        return [Part("weight", "U8", (16,), 8 * at, 8, reading(data)) for at, data in enumerate(values)]

    def change(self, values: Any) -> None:
        for data in values:
            data[:] = bytes(byte ^ 255 for byte in data)


TENSORS = [
    torch.arange(2000, dtype=torch.float32),
    torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T,
    torch.tensor(3, dtype=torch.int64),
    torch.empty(0),
    torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    torch.tensor([True, False]),
]


class OfTensors(SnapshotsContract):
    """Tensors of every layout, on the CPU if a class does not name another device."""

    device_name = "cpu"

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        return TorchSnapshots()

    def make_values(self) -> Any:
        return [each.to(self.device_name, copy=True, memory_format=torch.preserve_format) for each in TENSORS]

    def parts_of(self, values: Any) -> list[Part]:
        return [tensor_part(f"layer.{number}", tensor) for number, tensor in enumerate(values)]

    def change(self, values: Any) -> None:
        for tensor in values:
            if tensor.dtype is torch.bool:
                tensor.logical_not_()
            else:
                tensor.neg_().sub_(1)


class TestTorchSnapshots(OfTensors):
    """CPU tensors, and the memory of their copies."""

    def test_memory_is_reused(self) -> None:
        """The second snapshot of a tensor uses the memory of the first, or the memory that was prepared for it."""
        snapshots, tensor = TorchSnapshots(), torch.ones(10_000)
        snapshots.reserve({"model": [tensor_part("weight", tensor)]})()
        (reserved,) = (copy.buffer for copy in snapshots._copies.values())
        for _ in range(3):
            (taken,) = snapshots.take("model", [tensor_part("weight", tensor)])
            address = torch.frombuffer(taken.read(), dtype=torch.uint8).data_ptr()
            assert address == reserved.data_ptr()

    def test_large_tensors_are_aligned_to_pages(self) -> None:
        """Tensors of a page or more can be written to disk directly, whatever lies between them."""
        snapshots = TorchSnapshots()
        tensors = [torch.ones(count) for count in (1, 1024, 3, 5000, 1023, 2048)]
        parts = [tensor_part(f"layer.{place}", tensor) for place, tensor in enumerate(tensors)]
        snapshots.reserve({"model": parts})()
        large = [copy.buffer for copy in snapshots._copies.values() if copy.size >= PAGE]
        assert [buffer.numel() for buffer in large] == [1024, 5000, 2048]
        assert [buffer.data_ptr() % PAGE for buffer in large] == [0, 0, 0]
        assert [bytes(part.read()) for part in snapshots.take("model", parts)] == [bytes(part.read()) for part in parts]

    def test_a_resized_tensor_gets_new_memory(self) -> None:
        """A tensor that grew is copied completely."""
        snapshots = TorchSnapshots()
        snapshots.take("model", [tensor_part("weight", torch.ones(3))])
        (taken,) = snapshots.take("model", [tensor_part("weight", torch.full((5,), 2.0))])
        assert torch.frombuffer(bytearray(taken.read()), dtype=torch.float32).tolist() == [2.0] * 5

    def test_without_a_gpu_copies_are_synchronous(self) -> None:
        """On the CPU every copy is complete when the snapshot returns."""
        TorchSnapshots().wait_before_update()


class Operations(TorchDispatchMode):
    """Notes the operations that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.add(str(func))
        return func(*args, **kwargs or {})


def test_the_thread_that_allocates_calls_no_operation_first() -> None:
    """A process that is forked during a first call, such as a loader's worker, would wait for ever."""
    tensors = [torch.ones(3, 5), torch.ones(PAGE, dtype=torch.bfloat16), torch.ones((), dtype=torch.int64)]
    with Operations() as before:
        allocate = TorchSnapshots().reserve({"model": [tensor_part(f"{at}", each) for at, each in enumerate(tensors)]})
    with Operations() as in_thread:
        allocate()
    assert in_thread.called
    assert in_thread.called <= before.called


@pytest.mark.parametrize("cores", [1, 3])
def test_large_tensors_are_copied_completely_by_several_threads(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes of tensors of several pieces, including a conjugated one, are those at the time of the snapshot."""
    tensors = [
        torch.arange(PIECE // 4 * 2 + 7, dtype=torch.float32),
        torch.arange(PIECE + 1).to(torch.uint8),
        torch.randn(50, dtype=torch.complex64).conj(),
    ]
    wanted = [bytes(tensor_part(str(at), tensor).read()) for at, tensor in enumerate(tensors)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    taken = TorchSnapshots().take("model", [tensor_part(str(at), tensor) for at, tensor in enumerate(tensors)])
    for tensor in tensors:
        tensor.zero_()

    assert [bytes(part.read()) for part in taken] == wanted
