"""Passes over a loader that draws from the random streams of training: what is kept of each, to repeat it exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from attrs import define, field, frozen
from torch.utils.data import IterableDataset

from hexloop.adapters.batches.torch import random_streams
from hexloop.adapters.batches.torch.collate import DataCollatorWithPadding, collate_columns, default_data_collator
from hexloop.adapters.batches.torch.loader import ResumableLoader
from hexloop.adapters.batches.torch.order import only_stored
from hexloop.domain.ranges import Between, Count


@define
class Pass:
    """One pass over the loader.

    start, generators: the streams, and the loader's own generators, before it. read: batches taken from it.
    last: the streams before the last batch was taken. interludes: the streams before each batch, by its number, before
    which training had drawn random numbers and for which reading drew some as well.
    """

    epoch: int
    start: random_streams.Streams
    generators: list[torch.Tensor]
    read: int = 0
    last: random_streams.Streams | None = None
    interludes: dict[int, random_streams.Streams] = field(factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the fields as values that a checkpoint can hold."""
        return {
            "epoch": self.epoch,
            "start": random_streams.as_document(self.start),
            "generators": self.generators,
            "read": self.read,
            "last": None if self.last is None else random_streams.as_document(self.last),
            "interludes": [[number, random_streams.as_document(states)] for number, states in self.interludes.items()],
        }


MOST_READINGS = 100_000
"""How often an evaluation loader can have been read in one run."""

MOST_PLANS = 16
"""How many plans of padded lengths are kept: those of a data set are needed again at its next evaluation."""

Readings = Annotated[int, Between(0, MOST_READINGS)]


@frozen
class PassDocument:
    """What `Pass.document` returns."""

    epoch: Count
    start: Any
    generators: list[Any]
    read: Count
    last: Any
    interludes: list[tuple[Count, Any]]


@frozen
class ReplayDocument:
    """The document of `ReplayedBatches` in a checkpoint.

    reading: processes, workers, whether these persist, and generators. generators: their states at the save.
    kept: for each evaluation loader that is kept, the streams before its first pass and the number of passes.
    """

    reading: tuple[Count, Count, bool, Count]
    generators: list[Any]
    passes: list[PassDocument]
    kept: dict[str, tuple[Any, Readings]]


def refuse_invalid_passes(document: ReplayDocument, generators: Sequence[torch.Generator], batches: int | None) -> None:
    """Raise ValueError for passes that no reading leads to. batches: those of a pass, if their number is known."""
    if not document.passes:
        raise ValueError("replay.passes: there is none")
    random_streams.refuse_invalid_generator_states(document.generators, generators)
    for number, each in enumerate(document.passes):
        if batches is not None and each.read > batches:
            raise ValueError(f"replay.passes[{number}].read: {each.read} is more than the {batches} batches of a pass")
        random_streams.refuse_invalid_generator_states(each.generators, generators)
        random_streams.refuse_invalid_rng_states(each.start)
        for states in [each.last, *(states for _, states in each.interludes)]:
            if states is not None:
                random_streams.refuse_invalid_rng_states(states)
    for start, _ in document.kept.values():
        random_streams.refuse_invalid_rng_states(start)


def pass_from(document: dict[str, Any]) -> Pass:
    """Return the pass that a document describes."""
    interludes = {number: random_streams.from_document(states) for number, states in document["interludes"]}
    last = None if document["last"] is None else random_streams.from_document(document["last"])
    start, generators = random_streams.from_document(document["start"]), document["generators"]
    return Pass(document["epoch"], start, generators, document["read"], last, interludes)


# What a loader draws


def runs_no_user_code(loader: Any) -> bool:
    """Return whether reading runs no code of the user's, which might draw random numbers."""
    collate = getattr(loader, "collate_fn", None)
    inner = collate.args[0] if isinstance(collate, partial) and collate.func is collate_columns else collate
    known = inner is default_data_collator or type(inner) is DataCollatorWithPadding
    return known and only_stored(getattr(loader, "dataset", None))


def is_read_by_index(loader: Any) -> bool:
    """Return whether a loader is accelerate's, each process reads for itself, and its samplers draw before a pass."""
    from accelerate.data_loader import DataLoaderShard

    if type(loader) is not DataLoaderShard or isinstance(loader.dataset, IterableDataset):
        return False
    return all(type(each).__module__.startswith(KNOWN) for each in samplers_of(loader))


KNOWN = ("torch.utils.data.", "accelerate.", "transformers.")
"""The packages whose samplers draw all their random numbers, from torch's generator, before the first sample."""


def samplers_of(loader: Any) -> list[Any]:
    """Return the batch sampler of a loader and everything that it wraps, each once."""
    waiting, found = [getattr(loader, "batch_sampler", None)], list[Any]()
    while waiting:
        each = waiting.pop()
        if each is not None and all(each is not known for known in found):
            found.append(each)
            waiting += [getattr(each, "batch_sampler", None), getattr(each, "sampler", None)]
    return found


def own_generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader, its samplers and its dataset that are not seeded again for each epoch."""
    from accelerate.data_loader import SeedableRandomSampler

    holders = [loader, *samplers_of(loader), getattr(loader, "dataset", None)]
    found = [getattr(each, "generator", None) for each in holders if not isinstance(each, SeedableRandomSampler)]
    own = [each for each in found if isinstance(each, torch.Generator) and each is not torch.default_generator]
    return list(dict.fromkeys(own))


# Evaluation loaders that are kept


@define
class KeptLoaders:
    """Evaluation loaders whose workers persist, by the name of their data set, and how often each was read."""

    _loaders: dict[str, Any] = field(factory=dict)
    _starts: dict[str, random_streams.Streams] = field(factory=dict)
    _passes: dict[str, int] = field(factory=dict)
    _sources: dict[str, tuple[Any, ...]] = field(factory=dict)
    _plans: list[tuple[tuple[Any, ...], tuple[Any, ...], Any]] = field(factory=list)

    def of(self, name: str, sources: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the loader of that name; make it if there is none that was made from the very same objects.

        Each pass over it draws what the first one drew, as after a resume, which makes another loader.
        """
        known = self._sources.get(name, ())
        if len(known) != len(sources) or any(one is not other for one, other in zip(known, sources, strict=True)):
            self._loaders[name], self._sources[name] = make(), sources
        elif isinstance(loader := self._loaders[name], ResumableLoader):
            loader.renew()
        return self._loaders[name]

    def plan_of(self, sources: tuple[Any, ...], values: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what was made of the very same objects and equal values, among the last few; make it otherwise."""
        for known, equal, plan in self._plans:
            if all(one is other for one, other in zip(known, sources, strict=True)) and equal == values:
                return plan
        self._plans = [*self._plans[1 - MOST_PLANS :], (sources, values, make())]
        return self._plans[-1][-1]

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the loader of that name; make it if there is none."""
        if name not in self._loaders:
            self._loaders[name] = make()
        return self._loaders[name]

    def reading(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of a loader. If it is one of these, record the pass."""
        name = next((name for name, each in self._loaders.items() if each is loader), None)
        if name is not None:
            self._starts.setdefault(name, random_streams.streams())
        yield from loader
        if name is not None:
            self._passes[name] = self._passes.get(name, 0) + 1

    def document(self) -> dict[str, Any]:
        """Return, for each loader that was read, the streams before its first pass and the number of passes."""
        return {name: [random_streams.as_document(self._starts[name]), count] for name, count in self._passes.items()}

    def restore(self, document: Mapping[str, tuple[Any, int]], loader_of: Callable[[str], Any]) -> None:
        """Read the loaders as often as a document says. loader_of: returns the loader of a name, by `get`."""
        self._loaders.clear()
        self._sources.clear()
        with random_streams.preserved_rng_states():
            for name, (start, count) in document.items():
                random_streams.set_streams(random_streams.from_document(start))
                loader = loader_of(name)
                self._starts[name], self._passes[name] = random_streams.from_document(start), 0
                for _ in range(count):
                    for _ in self.reading(loader):
                        pass
