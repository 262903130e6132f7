"""Data sets whose samples become tokens: with indices, tokenized when they are read or before, and streams."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hexloop.app.assembly.torch.data import is_iterable, only_stored
from hexloop.app.fine_tuning.samples import Tokenization, Tokens, as_row
from hexloop.app.fine_tuning.token_cache import (
    WINDOW,
    TokenCache,
    default_folder,
    digest_of_samples,
    digest_of_tokenization,
)

KEPT_TOKENS = 8_000_000
"""Tokens in memory at most, so that samples which are read again, as for their lengths, are not tokenized again."""

STATE = ("state_dict", "load_state_dict", "set_epoch", "_ex_iterable")
"""What a data set has if it keeps its position, and what a stream of `datasets` reads from."""

ORIGIN = ("builder_name", "config_name")
"""Attributes of a data set of `datasets` by which a model card names it."""


@frozen
class Preparation:
    """How the data sets of a Trainer become tokens.

    processes: those that tokenize before training; None if samples are tokenized as they are read. cache_folder: where
    tokens are kept; None for the usual folder, if there are `processes`.
    """

    tokenization: Tokenization
    processes: int | None = None
    cache_folder: str | None = None

    def __call__(self, dataset: Any) -> Any:
        """Return the tokens of a data set, or of each of several by name. What is tokenized stays as it is."""
        if isinstance(dataset, dict):
            return {name: self(each) for name, each in dataset.items()}
        if dataset is None or isinstance(dataset, TokenizedDataset | TokenizedStream):
            return dataset
        if is_iterable(dataset):
            return TokenizedStream(dataset, self.tokenization)
        first = first_sample(dataset)
        if isinstance(first, Mapping) and "input_ids" in first:
            return dataset
        return TokenizedDataset(dataset, self.tokenization)

    def problems(self, *datasets: Any) -> list[str]:
        """Return what is wrong with the forms of data sets, by the first sample of each. Streams are not read."""
        several = [each for one in datasets for each in (one.values() if isinstance(one, dict) else [one])]
        firsts = [first for each in several if (first := first_sample(each)) is not None]
        return list(dict.fromkeys(problem for first in firsts for problem in self.tokenization.problems(first)))

    @property
    def keeps(self) -> bool:
        """Whether tokens are kept on the disk."""
        return self.processes is not None or self.cache_folder is not None

    def fill(self, *datasets: Any) -> None:
        """Tokenize data sets with indices, and keep the tokens on the disk."""
        for one in datasets:
            for each in one.values() if isinstance(one, dict) else [one]:
                if isinstance(each, TokenizedDataset) and len(each):
                    each.fill(self._cache(), self.processes or 0)

    def _cache(self) -> TokenCache:
        folder = default_folder() if self.cache_folder is None else Path(self.cache_folder).expanduser()
        words = max(self.tokenization.tokenizer.get_vocab().values(), default=-1) + 1
        return TokenCache(folder.absolute(), words)


class TokenizedDataset:
    """A data set with indices whose samples are tokens: {"input_ids": [...], "labels": [...]}.

    Samples are tokenized when they are read, unless `fill` has done so before. Those read last are kept in memory.
    """

    def __init__(self, dataset: Any, tokenization: Tokenization) -> None:
        self.dataset, self.tokenization = dataset, tokenization
        self._kept = KeptTokens()
        self._cache: TokenCache | None = None
        self._digests: dict[int, str] = {}
        self._lengths: dict[int, Sequence[int]] = {}

    @property
    def only_stored(self) -> bool:
        """Whether reading a sample runs no code of the user's, which might draw random numbers."""
        return self.tokenization.choices.formatting is None and only_stored(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples; those that have to be tokenized are tokenized together."""
        found = {index: tokens for index in indices if (tokens := self._kept.get(index)) is not None}
        missing = list(dict.fromkeys(index for index in indices if index not in found))
        if missing and self._cache is not None:
            found |= self._from_cache(self._cache, missing)
            missing = [index for index in missing if index not in found]
        if missing:
            made = self.tokenization(samples_of(self.dataset, missing))
            for index, tokens in zip(missing, made, strict=True):
                found[index] = tokens
                self._kept.put(index, tokens)
        return [as_row(found[index]) for index in indices]

    def __getattr__(self, name: str) -> Any:
        if name in (*STATE, *ORIGIN):
            return getattr(self.dataset, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def fill(self, cache: TokenCache, processes: int) -> None:
        """Tokenize all samples that the cache lacks, window by window, in worker processes; 0 for none."""
        basis = digest_of_tokenization(self.tokenization.tokenizer, self.tokenization.choices)
        windows = _Windows(self.dataset, self.tokenization, cache, basis)
        own_generator = torch.Generator()  # so that torch's generator stays as it is
        loader: DataLoader[str] = DataLoader(
            windows, batch_size=None, num_workers=min(processes, len(windows)), generator=own_generator
        )
        self._digests = {number: digest for number, digest in enumerate(loader) if digest}
        self._cache = cache
        self._lengths.clear()

    @property
    def stored_lengths(self) -> Callable[[Sequence[int]], list[int]] | None:
        """Return what reads the lengths of samples without their tokens; None unless all are in the cache."""
        windows = math.ceil(len(self) / WINDOW)
        return self._read_lengths if self._cache is not None and len(self._digests) == windows else None

    def _read_lengths(self, indices: Sequence[int]) -> list[int]:
        for window in {index // WINDOW for index in indices} - self._lengths.keys():
            found = None if self._cache is None else self._cache.lengths(self._digests[window])
            if found is None:  # the file is gone, or damaged
                members = range(window * WINDOW, min((window + 1) * WINDOW, len(self)))
                found = [len(each["input_ids"]) for each in self.__getitems__(members)]
            self._lengths[window] = found
        return [int(self._lengths[index // WINDOW][index % WINDOW]) for index in indices]

    def _from_cache(self, cache: TokenCache, indices: Sequence[int]) -> dict[int, Tokens]:
        by_window: dict[int, list[int]] = {}
        for index in indices:
            by_window.setdefault(index // WINDOW, []).append(index)
        found: dict[int, Tokens] = {}
        for window, members in by_window.items():
            digest = self._digests.get(window)
            read = None if digest is None else cache.read(digest, [index % WINDOW for index in members])
            found |= dict(zip(members, read or (), strict=False))
        return found


@define
class KeptTokens:
    """The tokens of the samples that were read last, of `KEPT_TOKENS` in all at most."""

    _samples: OrderedDict[int, Tokens] = field(factory=OrderedDict, init=False)
    _total: int = field(default=0, init=False)

    def get(self, index: int) -> Tokens | None:
        """Return the tokens of a sample; None if they are not kept."""
        found = self._samples.get(index)
        if found is not None:
            self._samples.move_to_end(index)
        return found

    def put(self, index: int, tokens: Tokens) -> None:
        """Keep the tokens of a sample, in 4 bytes each, in place of those that were read least recently."""
        ids = array("i", tokens.input_ids)
        labels = ids if tokens.labels is tokens.input_ids else array("i", tokens.labels)
        self._samples[index] = Tokens(ids, labels)
        self._total += len(tokens.input_ids)
        while self._total > KEPT_TOKENS:
            _, dropped = self._samples.popitem(last=False)
            self._total -= len(dropped.input_ids)

    def __getstate__(self) -> None:
        """Return nothing: a worker process keeps what it reads itself."""

    def __setstate__(self, state: None) -> None:
        """Keep nothing yet."""
        self._samples, self._total = OrderedDict(), 0


class _Windows(Dataset[str]):
    """The windows of a data set; reading one puts its tokens into the cache, and returns their digest, "" for none."""

    def __init__(self, dataset: Any, tokenization: Tokenization, cache: TokenCache, basis: str) -> None:
        self.dataset, self.tokenization, self.cache, self.basis = dataset, tokenization, cache, basis

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / WINDOW)

    def __getitem__(self, number: int) -> str:
        indices = range(number * WINDOW, min((number + 1) * WINDOW, len(self.dataset)))
        samples = self.tokenization.formatted(samples_of(self.dataset, indices))
        digest = digest_of_samples(samples, self.basis)
        if digest is None:
            return ""
        if not self.cache.holds(digest) and not self.cache.write(digest, self.tokenization(samples)):
            return ""
        return digest


class TokenizedStream(IterableDataset[dict[str, Any]]):
    """A stream whose rows are tokens, each tokenized when it is read.

    The position is that of the stream, if it keeps one.
    """

    def __init__(self, dataset: Any, tokenization: Tokenization) -> None:
        self.dataset, self.tokenization = dataset, tokenization

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return _TokenizedRows(iter(self.dataset), self.tokenization)

    def __getattr__(self, name: str) -> Any:
        if name in STATE:
            return getattr(self.dataset, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class _TokenizedRows(Iterator[dict[str, Any]]):
    """The rows of a pass over a stream, with the state of the stream's own iterator, if it has one."""

    def __init__(self, rows: Iterator[Any], tokenization: Tokenization) -> None:
        self.rows, self.tokenization = rows, tokenization

    def __next__(self) -> dict[str, Any]:
        return self.tokenization.row(next(self.rows))

    def __getattr__(self, name: str) -> Any:
        if name in STATE:
            return getattr(self.rows, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


def first_sample(dataset: Any) -> Any:
    """Return the first sample of a data set with indices, without a trace in torch's generator; None if it has none."""
    if dataset is None or isinstance(dataset, TokenizedDataset) or is_iterable(dataset) or not len(dataset):
        return None
    with torch.random.fork_rng(devices=[]):
        return dataset[0]


def samples_of(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return the samples of these indices, read together if the data set can do that."""
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(list(indices))) if fetch is not None else [dataset[index] for index in indices]
