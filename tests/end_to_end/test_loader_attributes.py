"""The loaders have the attributes of those that accelerate prepares, with the same values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

import hexloop
from tests.end_to_end.small.models import net, rows


class Sized(IterableDataset[Any]):
    """A stream of ten samples with a length, and epochs."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return 10

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(rows(10))


class Unsized(IterableDataset[Any]):
    """A stream without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(rows(10))


def with_sampler(library: Any) -> Any:
    class Own(library.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return RandomSampler(self.train_dataset, generator=torch.Generator())

        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            return RandomSampler(eval_dataset, generator=torch.Generator())

    return Own


SAME = ("num_workers", "drop_last", "prefetch_factor", "pin_memory", "persistent_workers", "timeout", "in_order")
"""Attributes of torch's DataLoader that do not depend on who prepares it."""

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "by index": (lambda: rows(10), {}),
    "whole batches only": (lambda: rows(10), {"dataloader_drop_last": True}),
    "divisible": (lambda: rows(8), {}),
    "workers": (lambda: rows(10), {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3}),
    "sampler": (lambda: rows(10), {}),
    "stream with a length": (Sized, {}),
}


class Looking(transformers.TrainerCallback):
    """Keeps what a callback sees of the loader at every step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loader = kwargs["train_dataloader"]
        self.seen.append((state.global_step, loader.end_of_dataloader, loader.remainder, loader.total_batch_size))


class OursLooking(hexloop.TrainerCallback):
    """The same for hexloop."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    on_step_end = Looking.on_step_end


def trainer_for(library: Any, kind: str, folder: Path, callback: Any = None) -> Any:
    make, given = KINDS[kind]
    args = library.TrainingArguments(
        str(folder), use_cpu=True, report_to="none", per_device_train_batch_size=4, per_device_eval_batch_size=4,
        num_train_epochs=2, max_steps=6 if kind.startswith("stream") else -1, save_strategy="no", disable_tqdm=True,
        **given,
    )  # fmt: skip
    made = with_sampler(library) if kind == "sampler" else library.Trainer
    callbacks = [] if callback is None else [callback]
    return made(model=net(), args=args, train_dataset=make(), eval_dataset=make(), callbacks=callbacks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["train", "eval"])
def test_they_are_those_of_a_prepared_loader(kind: str, which: str, tmp_path: Path) -> None:
    """Before a pass, at each batch, and after it."""
    seen = []
    for library in (hexloop, transformers):
        trainer = trainer_for(library, kind, tmp_path)
        loader: Any = getattr(trainer, f"get_{which}_dataloader")()
        assert issubclass(loader.__class__, DataLoader)
        stream = library is transformers and kind.startswith("stream")  # accelerate's loader has no total_batch_size
        totals = 4 if stream else loader.total_batch_size
        sizes = (None, 4) if kind == "sampler" else (loader.batch_size,)  # accelerate's has None for data with indices
        assert loader.batch_size in sizes
        values = [totals, loader.total_dataset_length, sizes, len(loader)]
        values += [getattr(loader, name) for name in SAME]
        values += [loader.end_of_dataloader, loader.remainder]
        assert callable(loader.collate_fn)
        assert loader.batch_sampler.batch_size == 4
        assert len(loader.dataset) == values[1]
        for _ in range(2):
            values += [loader.end_of_dataloader for _ in loader]
            values.append(loader.end_of_dataloader)
        if not kind.startswith("stream"):  # accelerate measures those at the end of a pass
            values.append(loader.remainder)
            assert sorted(loader.batch_sampler.sampler) == list(range(values[1]))
        seen.append(values)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("stream")])
def test_callbacks_see_the_end_of_each_pass(kind: str, tmp_path: Path) -> None:
    """At the steps at which they see it in transformers."""
    ours, theirs = OursLooking(), Looking()
    trainer_for(hexloop, kind, tmp_path / "ours", ours).train()
    trainer_for(transformers, kind, tmp_path / "theirs", theirs).train()
    assert ours.seen == theirs.seen
    assert [end for _, end, *_ in ours.seen].count(True) == 2


def test_the_end_of_a_stream_without_a_length(tmp_path: Path) -> None:
    """Is known once the pass is over."""
    trainer = trainer_for(hexloop, "by index", tmp_path)
    loader = trainer.get_eval_dataloader(Unsized())
    assert loader.remainder == -1
    with pytest.raises(TypeError, match="no len"):
        print(loader.total_dataset_length)
    assert [loader.end_of_dataloader for _ in loader] == [False] * 3
    assert loader.end_of_dataloader
    assert loader.remainder == -1


def test_the_epoch_can_be_set(tmp_path: Path) -> None:
    """The order is that of the epoch in a run; a dataset with epochs is told."""
    trainer = trainer_for(hexloop, "by index", tmp_path)
    loader = trainer.get_train_dataloader()
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        orders.append(torch.cat([batch["labels"] for batch in loader]).tolist())
        assert list(BatchSampler(loader.batch_sampler.sampler, 4, drop_last=False)) == list(loader.batch_sampler)
    assert orders[0] == orders[2] != orders[1]
    streaming = trainer_for(hexloop, "stream with a length", tmp_path)
    loader = streaming.get_train_dataloader()
    loader.set_epoch(3)
    assert streaming.train_dataset.epochs == [3]
    assert len(list(loader)) == 3
