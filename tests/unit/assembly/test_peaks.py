"""What accelerators compute at most, by the names that torch has for them, and what torch_xla's metrics say."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hexloop.adapters.device.torch import kinds
from hexloop.adapters.device.torch.kinds import KINDS, Kind
from hexloop.adapters.device.torch.peaks import FORMATS, PEAKS, peak_of, tpu_peak


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100 80GB PCIe", "tf32", 156e12),
        ("A100-SXM4-40GB", "fp32", 19.5e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "fp16", 989.4e12),
        ("NVIDIA H20", "bf16", None),
        ("NVIDIA B200", "bf16", 2250e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA A10G", "bf16", 70e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("AMD Instinct MI300X", "bf16", 1307.4e12),
        ("NVIDIA H100 80GB HBM3", "fp4", None),
    ],
)
def test_a_peak_is_known_by_name_and_format(name: str, precision: str, peak: float | None) -> None:
    """A name that only resembles one of the table is not known."""
    assert peak_of(name, precision) == pytest.approx(peak)


@pytest.mark.parametrize("pattern", PEAKS)
def test_smaller_formats_are_not_slower(pattern: str) -> None:
    """In each row, from fp32 to fp8; bf16 and fp16 are equal, where both are there."""
    row = dict(zip(FORMATS, PEAKS[pattern], strict=True))
    known = [row[name] for name in ("fp32", "tf32", "fp16", "fp8") if row[name] is not None]
    assert known == sorted(known, key=lambda each: each or 0)
    assert row["bf16"] in (None, row["fp16"])


@pytest.mark.parametrize(
    ("accelerator", "precision", "peak"),
    [
        ("v5litepod-16", "bf16", 197e12),
        ("v5p-8", "bf16", 459e12),
        ("v4-32", "bf16", 275e12),
        ("v6e-1", "bf16", 918e12),
        ("v6e-1", "fp32", None),
        ("v3-8", "bf16", None),
        ("", "bf16", None),
    ],
)
def test_the_peak_of_a_tpu_is_that_of_its_type(
    accelerator: str, precision: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the environment of Cloud TPU has it, with the number of chips or cores after it."""
    monkeypatch.setenv(kinds.TPU_TYPE, accelerator)
    assert KINDS["xla"].peak(0, precision) == tpu_peak(accelerator, precision) == pytest.approx(peak)


def test_a_kind_asks_its_module_for_the_name() -> None:
    """One without a name has no known peak, as the CPU."""
    module = SimpleNamespace(get_device_name=lambda number: ["NVIDIA L4", "NVIDIA A10G"][number])
    row = Kind("bare", lambda _: None, module=module)  # type: ignore[arg-type, return-value]
    assert [row.peak(number, "tf32") for number in (0, 1)] == [60e12, 35e12]
    assert KINDS["cpu"].peak(0, "fp32") is None
    assert (row.driven(), row.compile_seconds()) == (1, 0.0)


class Metrics:
    """torch_xla's metrics: two programs were compiled, which took three seconds."""

    def __init__(self) -> None:
        self.count, self.reads = 0, 0

    def counter_value(self, name: str) -> int | None:
        assert name == "UncachedCompile"
        return self.count or None

    def metric_data(self, name: str) -> Any:
        assert name == "CompileTime"
        self.reads += 1
        return self.count, self.count * 1.5e9, ()


def test_xla_reads_its_metrics_after_a_compilation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the process, in nanoseconds."""
    metrics = Metrics()
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_xla.debug", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_xla.debug.metrics", metrics)
    row = kinds.Xla("xla", lambda _: None)  # type: ignore[arg-type, return-value]
    assert row.compile_seconds() == 0
    metrics.count = 2
    assert [row.compile_seconds() for _ in range(3)] == [3.0] * 3
    assert metrics.reads == 1


@pytest.mark.parametrize(("spmd", "driven"), [(True, 4), (False, 1)])
def test_spmd_drives_all_devices_of_a_process(monkeypatch: pytest.MonkeyPatch, spmd: bool, driven: int) -> None:
    """Otherwise a process drives one."""
    runtime = SimpleNamespace(is_spmd=lambda: spmd, global_runtime_device_count=lambda: 8, process_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
    assert KINDS["xla"].driven() == driven
