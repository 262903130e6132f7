"""Sample order and data loading."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hexloop.testing import SimulatedDevice
from tests.end_to_end.arguments.bench import Bench, Recording, shows
from tests.end_to_end.small.models import net, rows


def numbered(count: int = 16) -> list[dict[str, Tensor]]:
    """Samples whose first feature is their index."""
    return [{**row, "x": torch.tensor([float(index), 0, 0, 0])} for index, row in enumerate(rows(count))]


def order(bench: Bench, **given: Any) -> list[int]:
    """Return the indices of an epoch's samples, in training order."""
    seen: list[int] = []

    class Seeing(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            seen.extend(int(number) for number in x[:, 0])
            return super().forward(x, labels)

    bench.trained({"model": Seeing(), "train_dataset": numbered()}, **given)
    return seen


@shows("train_sampling_strategy")
def _(bench: Bench) -> None:
    assert order(bench, train_sampling_strategy="sequential") == list(range(16))
    drawn = order(bench)
    assert drawn != list(range(16))
    assert sorted(drawn) == list(range(16))


@shows("data_seed")
def _(bench: Bench) -> None:
    assert order(bench, data_seed=1) == order(bench, data_seed=1, seed=7) != order(bench, data_seed=2)


@shows("length_column_name")
def _(bench: Bench) -> None:
    """Batches of similar lengths, which are in a column of that name."""
    lengths = [1, 9, 5, 3, 7, 2, 8, 4] * 8
    data = [{**row, "many": length} for row, length in zip(numbered(64), lengths, strict=True)]
    spreads: list[int] = []

    class Seeing(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            chosen = [lengths[int(number)] for number in x[:, 0]]
            spreads.append(max(chosen) - min(chosen))
            return super().forward(x, labels)

    parts = {"model": Seeing(), "train_dataset": data}
    bench.trained(parts, train_sampling_strategy="group_by_length", length_column_name="many")
    assert len(spreads) == 16
    assert sum(spreads) <= 3 * 16


@shows("remove_unused_columns")
def _(bench: Bench) -> None:
    data = [{**row, "note": torch.ones(1)} for row in rows(16)]
    assert bench.trained({"train_dataset": data}).state.global_step == 4
    with pytest.raises(TypeError, match="note"):
        bench.trained({"train_dataset": data}, remove_unused_columns=False)


@shows("label_names")
def _(bench: Bench) -> None:
    class Answering(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None, answers: Tensor | None = None) -> Any:
            return super().forward(x, answers)

    data = [{"x": row["x"], "answers": row["labels"]} for row in rows(8)]
    predicted = bench.trainer({"model": Answering()}, label_names=["answers"]).predict(data)
    assert predicted.label_ids.tolist() == torch.stack([row["answers"] for row in data]).tolist()
    assert bench.trainer({"model": Answering()}, label_names=[]).predict(data).label_ids is None


class Where(Dataset[dict[str, Tensor]]):
    """Samples that contain the id of the process that loaded them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        process = multiprocessing.current_process()
        kind = type(process).__name__
        return {
            "x": torch.tensor([float(process.pid or 0), float(kind == "SpawnProcess"), 0, 0]),
            "labels": torch.ones(1),
        }


def loaded(bench: Bench, epochs: int = 1, **given: Any) -> Iterator[tuple[int, bool]]:
    """Return the processes that loaded each epoch's samples, and whether they were spawned."""
    loader = bench.trainer({"train_dataset": Where()}, **given).get_train_dataloader()
    for _ in range(epochs):
        x = torch.cat([batch["x"] for batch in loader])
        yield len(set(x[:, 0].tolist())), bool(x[:, 1].any())


@shows("dataloader_num_workers")
def _(bench: Bench) -> None:
    assert list(loaded(bench, dataloader_num_workers=2)) == [(2, False)]
    assert list(loaded(bench)) == [(1, False)]


@shows("dataloader_multiprocessing_context")
def _(bench: Bench) -> None:
    loader = bench.trainer(dataloader_num_workers=1, dataloader_multiprocessing_context="spawn").get_train_dataloader()
    context = loader.multiprocessing_context
    assert getattr(context, "get_start_method", lambda: context)() == "spawn"


@shows("dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_in_order", "dataloader_drop_last")
def _(bench: Bench) -> None:
    given = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True}
    loader = bench.trainer({"train_dataset": rows(6)}, dataloader_in_order=False, **given).get_train_dataloader()
    assert (loader.prefetch_factor, loader.persistent_workers, loader.in_order) == (3, True, False)
    model = Recording()
    bench.trained({"model": model, "train_dataset": rows(6)}, dataloader_drop_last=True)
    assert model.sizes == [(True, 4)]


@shows("dataloader_pin_memory")
def _(bench: Bench) -> None:
    """It needs a GPU; on the CPU nothing is pinned."""

    def pins(given: bool) -> bool:
        made = bench.trainer(
            {"device": SimulatedDevice(pins_memory=True), "model": net()}, use_cpu=False, dataloader_pin_memory=given
        )
        return bool(made.get_train_dataloader().pin_memory)

    assert (pins(True), pins(False)) == (True, False)
