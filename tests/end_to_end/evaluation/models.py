"""Models with every form of outputs, and data for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset, IterableDataset

FEATURES = 4

Give = Callable[[Tensor, Tensor], Any]
"""Map inputs and logits, of shape (batch, 4) and (batch, 3), to the model's outputs besides its loss."""

FORMS: Mapping[str, Give] = {
    "one tensor": lambda x, logits: {"logits": logits},
    "two tensors": lambda x, logits: {"logits": logits, "hidden": x[:, None, :].repeat(1, 3, 1)},
    "a tuple in it": lambda x, logits: {"logits": logits, "layers": (x, logits + 1)},
    "a list in it": lambda x, logits: {"logits": logits, "layers": [x, x.long()]},
    "a mapping in it": lambda x, logits: {"logits": logits, "named": {"x": x, "pair": (logits, x)}},
    "rows without width": lambda x, logits: {"logits": logits.sum(1)},
    "a number a batch": lambda x, logits: {"logits": logits, "scale": logits.mean()},
    "truth values": lambda x, logits: {"logits": logits > 0},
    "half precision": lambda x, logits: {"logits": logits.half()},
    "brain floats": lambda x, logits: {"logits": logits.bfloat16()},
    "wider from batch to batch": lambda x, logits: {"logits": logits.repeat(1, 1 + int(x[0, 0].abs() * 4))},
    "narrower and wider, in three dimensions": lambda x, logits: {
        "logits": logits.repeat(1, 1 + int(x[-1, 1].abs() * 4))[:, :, None].expand(-1, -1, 2)
    },
    "truth values of many widths": lambda x, logits: {"logits": (logits > 0).repeat(1, 1 + int(x[0, 0].abs() * 4))},
    "bytes of many widths": lambda x, logits: {"logits": logits.byte().repeat(1, 1 + int(x[0, 0].abs() * 4))},
}
"""Forms of outputs by name."""


class Giving(nn.Module):
    """(batch, 4) -> a loss if there are labels, and the result of `give` for inputs and logits."""

    def __init__(self, give: Give, as_tuple: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.line, self.dropout = nn.Linear(FEATURES, 3), nn.Dropout(0.5)
        self.give, self.as_tuple = give, as_tuple

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.dropout(self.line(x))
        given = dict(self.give(x, logits))
        if labels is not None:
            given = {"loss": mse_loss(logits.sum(1), labels.float()), **given}
        return tuple(given.values()) if self.as_tuple else given


class Points(Dataset[dict[str, Tensor]]):
    """Samples of four random numbers and a label; `names` are the names of the labels."""

    def __init__(self, count: int, names: tuple[str, ...] = ("labels",), seed: int = 0) -> None:
        source = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, FEATURES, generator=source)
        self.names = names

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = self.x[index]
        return {"x": x, **{name: (x.sum() * 3).round().long() for name in self.names}}


class Passing(IterableDataset[dict[str, Tensor]]):
    """The same samples as a stream without a length."""

    def __init__(self, count: int) -> None:
        self.points = Points(count)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        yield from (self.points[index] for index in range(len(self.points)))
