"""The data that both libraries train on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tests.end_to_end.parity.models import CLASSES, CONTEXT, IMAGE_SIDE, VOCABULARY

IGNORED = -100


class Samples(Dataset[dict[str, Tensor]]):
    """Samples held in memory."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def to(self, dtype: torch.dtype) -> Samples:
        """Return the same samples with floats of another dtype."""
        columns = self.columns.items()
        return Samples(**{name: each.to(dtype) if each.is_floating_point() else each for name, each in columns})


def images(count: int, seed: int = 0) -> Samples:
    """Return noisy images of shape (1, 8, 8), with one pattern per class."""
    source = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, IMAGE_SIDE, IMAGE_SIDE, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, CLASSES, (count,), generator=source)
    noise = torch.randn(count, 1, IMAGE_SIDE, IMAGE_SIDE, generator=source)
    return Samples(pixels=patterns[labels] + 0.7 * noise, labels=labels)


def token_rows(count: int, seed: int = 0, shifted: bool = False) -> Samples:
    """Return rows of tokens, most of which follow from the previous one; the start of each row has no labels.

    The length of that start varies widely between rows. With `shifted`, labels are aligned with their inputs; otherwise
    they are the inputs, and the loss shifts them.
    """
    source = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, CONTEXT + 1), generator=source)
    follows = torch.rand(count, CONTEXT, generator=source) < 0.8
    for position in range(CONTEXT):
        after = (tokens[:, position] * 7 + 3) % VOCABULARY
        tokens[:, position + 1] = torch.where(follows[:, position], after, tokens[:, position + 1])
    labels = tokens.clone()
    unlearned = torch.randint(0, CONTEXT - 2, (count, 1), generator=source)
    labels[torch.arange(CONTEXT + 1) < unlearned] = IGNORED
    if shifted:
        return Samples(input_ids=tokens[:, :-1], labels=labels[:, 1:])
    return Samples(input_ids=tokens[:, :-1], labels=labels[:, :-1])


def samples_for(model: str, count: int, seed: int = 0) -> Samples:
    """Return data for the model of that name."""
    return images(count, seed) if model == "convolution" else token_rows(count, seed, shifted=model == "plain GPT")
