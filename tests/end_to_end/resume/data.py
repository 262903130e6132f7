"""Training data of every kind, with random augmentation by any of the three libraries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from hexloop import Trainer
from tests.end_to_end.small.models import FEATURES, rows

COUNT = 22
"""Rows of an epoch: six batches of four, the last of two."""

Row = dict[str, Any]

NOISE: dict[str, Callable[[], float]] = {
    "none": lambda: 0.0,
    "python": random.random,
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


def augmented(library: str, row: Row) -> Row:
    """Return the row with a little noise from a library's generator."""
    return {"x": torch.as_tensor(row["x"]) + 0.1 * NOISE[library](), "labels": torch.as_tensor(row["labels"])}


class Mapped(Dataset[Row]):
    """Rows with random access."""

    def __init__(self, library: str) -> None:
        self.library, self.rows = library, rows(COUNT)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return augmented(self.library, self.rows[index])


class MappedWithState(Mapped):
    """Also adds noise from a generator of its own, which its state_dict contains."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.generator = torch.Generator().manual_seed(11)

    def __getitem__(self, index: int) -> Row:
        row = super().__getitem__(index)
        return {**row, "x": row["x"] + 0.1 * torch.rand(FEATURES, generator=self.generator)}

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])


class Streamed(IterableDataset[Row]):
    """Rows as a stream, split among workers."""

    def __init__(self, library: str) -> None:
        self.library, self.rows = library, rows(COUNT)

    def share(self) -> list[Row]:
        info = get_worker_info()
        return self.rows if info is None else self.rows[info.id :: info.num_workers]

    def __iter__(self) -> Iterator[Row]:
        for row in self.share():
            yield augmented(self.library, row)


class StreamedWithState(Streamed):
    """A stream with a state_dict, and noise from a Python generator of its own."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.read, self.random = 0, random.Random(3)

    def __iter__(self) -> Iterator[Row]:
        share = self.share()
        while self.read < len(share):
            row = augmented(self.library, share[self.read])
            self.read += 1
            yield {**row, "x": row["x"] + 0.1 * self.random.random()}
        self.read = 0

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "random": self.random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]
        self.random.setstate(state["random"])


def of_the_hub() -> Any:
    from datasets import Dataset as HubDataset  # slow to import, and only some cases need it

    plain = rows(COUNT)
    return HubDataset.from_dict({name: [row[name].tolist() for row in plain] for name in ("x", "labels")})


def transformed(library: str, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The transform that `datasets` calls on rows when they are read."""
    read = [augmented(library, {"x": x, "labels": y}) for x, y in zip(batch["x"], batch["labels"], strict=True)]
    return {name: [row[name] for row in read] for name in ("x", "labels")}


DATA: dict[str, Callable[[str], Any]] = {
    "map": Mapped,
    "map with state": MappedWithState,
    "iterable": Streamed,
    "iterable with state": StreamedWithState,
    "datasets": lambda library: of_the_hub().with_transform(partial(transformed, library)),
    "datasets, streamed": lambda library: (
        of_the_hub().to_iterable_dataset(num_shards=3).map(partial(augmented, library))
    ),
    "datasets, streamed and shuffled": lambda library: (
        of_the_hub().to_iterable_dataset(num_shards=3).shuffle(seed=4, buffer_size=5).map(partial(augmented, library))
    ),
    "a loader of the user's": Mapped,
    "a stateful loader": Mapped,
    "a stateful loader of a stream": StreamedWithState,
}


class UsersLoader(Trainer):
    """Loads its data with torch's own loader."""

    def get_train_dataloader(self) -> Any:
        workers = self.args.dataloader_num_workers
        return DataLoader(self.train_dataset, 4, shuffle=True, collate_fn=self.data_collator, num_workers=workers)


class StatefulLoader(Trainer):
    """Loads its data with torchdata's loader."""

    def get_train_dataloader(self) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(
            self.train_dataset,
            4,
            shuffle=not isinstance(self.train_dataset, IterableDataset),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )


TRAINERS: dict[str, type[Trainer]] = {
    "a loader of the user's": UsersLoader,
    "a stateful loader": StatefulLoader,
    "a stateful loader of a stream": StatefulLoader,
}
