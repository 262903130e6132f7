"""Documents: their lengths, how they are cut and collated, and the loaders of packed rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset
from transformers import DataCollatorWithFlattening

from hexloop.adapters.batches.torch.data_state import decode_state
from hexloop.adapters.batches.torch.document_lengths import DocumentLengths
from hexloop.adapters.batches.torch.documents import (
    DocumentCollate,
    JoinedRows,
    cut,
)
from hexloop.adapters.batches.torch.loader import ResumableLoader
from hexloop.adapters.batches.torch.packing import (
    PackedBatchSampler,
    PackedLoader,
    PackedStream,
    UnitCollate,
    documents_in,
    packed_stream,
)
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.domain.errors import DataError
from hexloop.domain.order import KeyedPermutation, Sequential, Shard
from hexloop.domain.packing import Packing, Planner, TokenBudget, UnitOrder
from hexloop.ports.batches import IGNORED_LABEL
from hexloop.ports.mesh import Place


def documents(count: int, longest: int = 9, seed: int = 0) -> list[dict[str, list[int]]]:
    """Return documents whose tokens tell which one they are of."""
    source = random.Random(seed)
    return [
        {"input_ids": [100 * (number + 1) + each for each in range(source.randint(1, longest))]}
        for number in range(count)
    ]


# Lengths

LENGTHS = [3, 1, 5, 2, 4, 7]


def table(**columns: Any) -> Any:
    return datasets.Dataset.from_dict({"input_ids": [[0] * length for length in LENGTHS], **columns})


class Reading(Dataset[Any]):
    """Documents that are made when they are read."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": torch.zeros(LENGTHS[index])}


SOURCES: dict[str, tuple[Any, list[int]]] = {
    "a list": ([{"input_ids": [0] * length} for length in LENGTHS], LENGTHS),
    "a data set of the user's": (Reading(), LENGTHS),
    "a table": (table(), LENGTHS),
    "a table in parts": (datasets.concatenate_datasets([table(), table()]), LENGTHS * 2),
    "a table in another order": (table().select([5, 0, 2]), [7, 3, 5]),
    "a shuffled table": (table().shuffle(seed=1), [len(row["input_ids"]) for row in table().shuffle(seed=1)]),
    "a column of lengths": (table(length=[9, 8, 7, 6, 5, 4]), [9, 8, 7, 6, 5, 4]),
    "a part of a column of lengths": (table(length=[9, 8, 7, 6, 5, 4]).select(range(2, 5)), [7, 6, 5]),
    "a table with a transform": (
        table().with_transform(lambda rows: {"input_ids": [[1, 2]] * len(rows["input_ids"])}),
        [2] * 6,
    ),
    "a formatted table": (table().with_format("torch"), LENGTHS),
}


@pytest.mark.parametrize("name", SOURCES)
def test_lengths(name: str) -> None:
    """They are found in any kind of data, at any indices in any order."""
    data, expected = SOURCES[name]
    lengths, indices = DocumentLengths(data, "length"), list(range(len(expected)))[::-1]
    assert lengths(indices) == expected[::-1]
    assert lengths([1, 1, 0]) == [expected[1], expected[1], expected[0]]
    assert lengths.are_cheap


def test_tables_are_not_read_for_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's offsets say how long lists are."""
    lengths = DocumentLengths(table(), "length")
    monkeypatch.setattr(datasets.Dataset, "__getitems__", None)
    assert lengths([2, 0]) == [5, 3]


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        ({"text": "a b"}, "has text, but packing, .* Tokenize the texts first"),
        ({"ids": [1, 2]}, "has ids, .* Rename the column with the tokens to input_ids"),
        ([1, 2], "is of type list"),
    ],
)
def test_what_is_not_a_document(sample: Any, problem: str) -> None:
    """The message says what is missing, and how to make it."""
    with pytest.raises(DataError, match=problem):
        DocumentLengths([sample], "length")([0])


# Cutting


def test_a_piece_has_the_tokens_of_all_columns() -> None:
    """Columns of another length stay; a document that is used whole is not copied."""
    whole = {"input_ids": [1, 2, 3, 4], "labels": np.array([5, 6, 7, 8]), "label": 3, "name": "abcd", "pair": [0, 1]}
    piece = cut(whole, 1, 3)
    assert (piece["input_ids"], piece["labels"].tolist()) == ([2, 3], [6, 7])
    assert (piece["label"], piece["name"], piece["pair"]) == (3, "abcd", [0, 1])
    assert cut(whole, 0, 4) is whole
    assert cut({"input_ids": [1, 2, 3, 4], "seq_lengths": [1, 3]}, 0, 2)["seq_lengths"].tolist() == [1, 1]


# Collating

A, B = {"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def test_rows_of_several_documents() -> None:
    """Positions restart with each document, and with the padding; the first label of each is left out."""
    assert plain(DocumentCollate("rows", pad_id=9)([[A, B], [B]])) == {
        "input_ids": [[1, 2, 3, 4, 5], [4, 5, 9, 9, 9]],
        "labels": [[-100, 2, 3, -100, 5], [-100, 5, -100, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]],
        "use_cache": False,
    }


def test_one_row_of_all_documents() -> None:
    """It is padded only to a multiple."""
    collate = DocumentCollate("flat", multiple=4, first_position=2, boundaries=True, without_cache=False)
    assert plain(collate([[A, B], [B]])) == {
        "input_ids": [[1, 2, 3, 4, 5, 4, 5, 0]],
        "labels": [[-100, 2, 3, -100, 5, -100, 5, -100]],
        "position_ids": [[2, 3, 4, 2, 3, 2, 3, 2]],
        "cu_seq_lens_q": [0, 3, 5, 7, 8],
        "cu_seq_lens_k": [0, 3, 5, 7, 8],
        "max_length_q": 3,
        "max_length_k": 3,
    }
    assert collate([[A]])["cu_seq_lens_q"].dtype == torch.int32
    assert plain(DocumentCollate("flat", boundaries=True)([A, B]))["cu_seq_lens_q"] == [0, 3, 5]


def test_padded_rows_of_one_document() -> None:
    """They have an attention mask and no positions, and all labels of the data."""
    assert plain(DocumentCollate(multiple=4)([A, {**B, "labels": [7, 8]}])) == {
        "input_ids": [[1, 2, 3, 0], [4, 5, 0, 0]],
        "labels": [[1, 2, 3, -100], [7, 8, -100, -100]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0]],
    }


@pytest.mark.parametrize("mask", ["completion_mask", "assistant_masks"])
def test_masks_leave_labels_out(mask: str) -> None:
    """The tokens with 0 are not predicted; both masks count together."""
    document = {"input_ids": [1, 2, 3, 4], "labels": [5, 6, 7, 8], mask: [0, 0, 1, 1]}
    assert DocumentCollate("rows")([[document, B]])["labels"].tolist() == [[-100, -100, 7, 8, -100, 5]]
    other = {"completion_mask": [0, 1, 1, 1], "assistant_masks": [1, 1, 0, 1]}
    assert DocumentCollate()([{**document, **other}])["labels"].tolist() == [[-100, 6, -100, 8]]


@pytest.mark.parametrize(
    "seams", [{"seq_lengths": [2, 3]}, {"position_ids": [0, 1, 0, 1, 2]}, {"position_ids": [2, 3, 2, 3, 4]}]
)
def test_rows_that_were_packed_before(seams: dict[str, list[int]]) -> None:
    """Their documents are found again."""
    found = plain(DocumentCollate("flat")([{"input_ids": [1, 2, 3, 4, 5], **seams}, B]))
    assert found["position_ids"] == [[0, 1, 0, 1, 2, 0, 1]]
    assert found["labels"] == [[-100, 2, -100, 4, 5, -100, 5]]


def test_other_columns_of_a_value_per_token() -> None:
    """Those that the model takes are joined like the tokens."""
    document = {"input_ids": [1, 2], "token_type_ids": [0, 1]}
    found = DocumentCollate("rows", extra=("token_type_ids",))([[document, document], [document]])
    assert found["token_type_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from(["rows", "flat"]),
)
def test_every_token_has_its_position(rows: list[list[int]], multiple: int, layout: str) -> None:
    """Without the padding, tokens, labels and positions are those of the documents one after another."""
    numbers = iter(range(1, 1000))
    given_rows = [[{"input_ids": [next(numbers) for _ in range(length)]} for length in row] for row in rows]
    batch = DocumentCollate(layout, multiple=multiple)(given_rows)
    tokens = [each["input_ids"] for row in given_rows for each in row]
    kept = batch["input_ids"] != 0
    assert batch["input_ids"][kept].tolist() == [token for each in tokens for token in each]
    assert batch["position_ids"][kept].tolist() == [at for each in tokens for at in range(len(each))]
    assert batch["labels"][kept].tolist() == [
        token if at else IGNORED_LABEL for each in tokens for at, token in enumerate(each)
    ]
    assert (batch["labels"][~kept] == IGNORED_LABEL).all()
    assert batch["input_ids"].shape[1] % multiple == 0
    assert batch["input_ids"].shape[1] >= 1


BROKEN: dict[str, tuple[Any, str]] = {
    "labels of another length": ({"input_ids": [1, 2], "labels": [1]}, "has 2 tokens in 'input_ids', and its 'labels'"),
    "a mask of another length": (
        {"input_ids": [1, 2], "completion_mask": [1, 0, 1]},
        "'completion_mask' has the shape",
    ),
    "padding": ({"input_ids": [1, 2], "attention_mask": [1, 0]}, "A document has padding"),
    "wrong lengths": ({"input_ids": [1, 2], "seq_lengths": [1, 2]}, "has 2 tokens, and its seq_lengths"),
    "texts": ({"text": "a"}, "Tokenize the texts first"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_documents_that_do_not_fit(name: str) -> None:
    """One clear message each."""
    document, problem = BROKEN[name]
    with pytest.raises(DataError, match=problem):
        DocumentCollate("rows")([[A, document]])


def test_documents_without_labels() -> None:
    """They are refused for a model that does not predict its own input."""
    with pytest.raises(DataError, match="A document has no 'labels'"):
        DocumentCollate("rows", copies=False)([[A]])


def test_flattening_collator_of_transformers() -> None:
    """It gets the documents of all rows, and makes the same batch."""
    flattening: Any = DataCollatorWithFlattening
    theirs = plain(JoinedRows(flattening(), without_cache=True)([[A, B], [B]]))
    assert theirs == plain(DocumentCollate("flat")([[A, B], [B]]))


# Loaders


def tokens(batch: Any) -> list[list[int]]:
    return [[token for token in row if token] for row in batch["input_ids"].tolist()]


def loader(
    count: int = 60,
    size: int = 4,
    ranks: Place | None = None,
    epochs: int = 0,
    drop_last: bool = False,
    workers: int = 0,
    strategy: str = "bfd",
    budget: int | None = None,
    data: Any = None,
) -> PackedLoader:
    """Return a loader of packed rows of 12 tokens, in windows of 16 documents."""
    found = documents(count, 15) if data is None else data
    lengths = DocumentLengths(found, "length")
    planner = Planner(Packing(12, strategy), None if budget is None else TokenBudget(budget), window=16)

    def make(epoch: int) -> UnitOrder:
        return UnitOrder(KeyedPermutation(0, epoch, len(found)), planner, lengths, 0, epoch)

    place = ranks or Place()
    batches = PackedBatchSampler(make, place.size if budget else size, drop_last, Shard(place), epochs)
    return PackedLoader(found, batches, DocumentCollate("rows"), num_workers=workers)


def stored(loader: ResumableLoader) -> Any:
    """Return the position of a loader as it comes from a checkpoint."""
    state = loader.position_state()
    assert state is not None
    return decode_state(state)


def read(loader: PackedLoader, epoch: int = 0, position: int = 0) -> list[tuple[list[list[int]], int]]:
    """Return the rows and the samples of each batch."""
    return [(tokens(share.batch), share.samples) for (share,) in loader.parts_from(epoch, position)]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_an_epoch_has_every_document(strategy: str) -> None:
    """Each counts as one sample; all tokens are in it, or are cut off."""
    whole = read(loader(strategy=strategy))
    assert sum(samples for _, samples in whole) == 60
    found = sorted(token for rows, _ in whole for row in rows for token in row)
    given_tokens = [each["input_ids"] if strategy != "bfd" else each["input_ids"][:12] for each in documents(60, 15)]
    assert found == sorted(token for each in given_tokens for token in each)


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("budget", [None, 30])
def test_ranks_read_the_same_rows(strategy: str, budget: int | None) -> None:
    """On 1, 2 and 4 ranks the rows come in the same order, and each batch has the samples of all ranks."""
    alone = read(loader(strategy=strategy, budget=budget, size=4))
    for size in (2, 4):
        ranks = [
            read(loader(strategy=strategy, budget=budget, size=4, ranks=Place(rank, size))) for rank in range(size)
        ]
        together, left = list[Any](), [row for rows, _ in alone for row in rows]
        for parts in zip(*ranks, strict=True):
            assert len({samples for _, samples in parts}) == 1
            for rows, _ in parts:
                if rows == left[: len(rows)]:  # a rank without rows of its own repeats the first
                    together += rows
                    left = left[len(rows) :]
        assert together == [row for rows, _ in alone for row in rows]
        assert sum(parts[0][1] for parts in zip(*ranks, strict=True)) == 60


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("epochs", [0, 3])
@pytest.mark.parametrize("budget", [None, 30])
def test_every_place_resumes(strategy: str, epochs: int, budget: int | None) -> None:
    """After any batch, another loader continues with the next one, from the stored place."""
    options: dict[str, Any] = {"strategy": strategy, "epochs": epochs, "budget": budget}
    for epoch in (0, 1):
        whole = read(loader(**options), epoch)
        reading = loader(**options)
        parts, position = reading.parts_from(epoch, 0), 0
        for number, (share,) in enumerate(parts, 1):
            position += share.samples
            other = loader(**options)
            other.load_position(stored(reading))
            assert read(other, epoch, position) == whole[number:]
        if strategy == "bfd":  # without a place, the number of documents is enough
            counted = 0
            for number, (_, samples) in enumerate(whole):
                assert read(loader(**options), epoch, counted) == whole[number:]
                counted += samples


def test_the_place_of_another_epoch_or_plan_is_left_out() -> None:
    """Position 0 starts over; a place of rows that were planned otherwise does not count."""
    reading = loader()
    next(reading.parts_from(0, 0))
    state = stored(reading)
    cases: list[tuple[int, dict[str, Any]]] = [(0, {}), (16, {"strategy": "wrapped"})]
    for position, options in cases:
        other = loader(**options)
        other.load_position(state)
        assert read(other, 0, position) == read(loader(**options), 0, position)
    other = loader()
    other.load_position(state)
    assert read(other, 1, 0) == read(loader(), 1, 0)


def test_batches_of_a_budget_are_the_same_on_any_ranks() -> None:
    """Also at the end of an epoch of fewer units than others: steps of four micro-batches stay what they are."""
    for epoch in range(3):
        alone = [rows for rows, _ in read(loader(budget=30, epochs=3), epoch)]
        parts = [read(loader(budget=30, epochs=3, ranks=Place(rank, 4)), epoch) for rank in range(4)]
        for number, turn in enumerate(zip(*parts, strict=True)):
            expected = alone[4 * number : 4 * number + 4]
            assert [rows for rows, _ in turn][: len(expected)] == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_that_are_planned_ahead_have_as_many_batches(drop_last: bool) -> None:
    """`len` is that number; no document is lost unless incomplete batches are dropped."""
    planned = loader(epochs=3, drop_last=drop_last)
    for epoch in range(3):
        whole = read(planned, epoch)
        assert len(whole) == len(planned)
        assert drop_last or sum(samples for _, samples in whole) == 60
    with pytest.raises(TypeError, match="not known"):
        len(loader())


def test_workers_read_the_same_rows() -> None:
    """Batches come in the same order from any number of workers."""
    assert read(loader(workers=2)) == read(loader())


class Augmented(Dataset[Any]):
    """Documents of a fixed length with random tokens."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": torch.randint(1, 1000, (1 + index % 7,))}


def test_random_documents_depend_on_their_place() -> None:
    """They are the same after a resume, with workers, and whatever random numbers training draws."""
    whole = read(loader(data=Augmented()))
    torch.manual_seed(7)
    position = sum(samples for _, samples in whole[:2])
    assert read(loader(data=Augmented()), 0, position) == whole[2:]
    assert read(loader(data=Augmented(), workers=1)) == whole


# Streams


class Stream(IterableDataset[Any]):
    """Documents, one after another; each worker reads its part."""

    def __init__(self, count: int = 60, noisy: bool = False) -> None:
        self.rows, self.noisy = documents(count, 15), noisy

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for row in self.rows[info.id :: info.num_workers] if info else self.rows:
            yield (
                {"input_ids": [token + 10_000 * random.randrange(1, 9) for token in row["input_ids"]]}
                if self.noisy
                else row
            )


class Stateful(Stream):
    """The same, with a state; it starts over when it has ended."""

    def __init__(self, count: int = 60, noisy: bool = False) -> None:
        super().__init__(count, noisy)
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        rows = list(super().__iter__()) if not self.noisy else self.rows
        while self.read < len(rows):
            self.read += 1
            row = rows[self.read - 1]
            yield (
                {"input_ids": [token + 10_000 * random.randrange(1, 9) for token in row["input_ids"]]}
                if self.noisy
                else row
            )
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def stream_loader(data: Any, strategy: str = "bfd", workers: int = 0, size: int = 2) -> StreamLoader:
    planner = Planner(Packing(12, strategy), window=16)
    packed = packed_stream(data, planner, "length", 0, lambda _cut, _read: None)
    return StreamLoader(
        packed,
        batch_size=size,
        collate_fn=UnitCollate(DocumentCollate("rows")),
        key_seed=0,
        count=documents_in,
        num_workers=workers,
    )


STREAMS: dict[str, Any] = {
    "without state": Stream,
    "with state": Stateful,
    "random without state": lambda: Stream(noisy=True),
    "random with state": lambda: Stateful(noisy=True),
}


READ_BY = [(kind, strategy, 0) for kind in STREAMS for strategy in ("bfd", "bfd_split", "wrapped")]
READ_BY += [("without state", "bfd", 2), ("with state", "bfd", 2), ("random without state", "wrapped", 2)]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("kind", "strategy", "workers"), READ_BY)
def test_streams_resume_at_every_place(kind: str, strategy: str, workers: int) -> None:
    """Their rows are packed in windows; a run continues with the next row after any batch of any pass."""
    make = STREAMS[kind]
    reading = stream_loader(make(), strategy, workers)
    for epoch in (0, 1):
        whole = [
            (tokens(share.batch), share.samples)
            for (share,) in stream_loader(make(), strategy, workers).parts_from(epoch, 0)
        ]
        assert sum(samples for _, samples in whole) == 60
        position = 0
        for number, (share,) in enumerate(reading.parts_from(epoch, 0), 1):
            assert (tokens(share.batch), share.samples) == whole[number - 1]
            position += share.samples
            if workers and number % 3:
                continue
            other = stream_loader(make(), strategy, workers)
            other.load_position(stored(reading))
            rest = [(tokens(each.batch), each.samples) for (each,) in other.parts_from(epoch, position)]
            assert rest == whole[number:]


def test_streams_of_rows_report_what_is_cut_off() -> None:
    """With the number of documents in what was read."""
    found: list[tuple[int, int]] = []
    stream = PackedStream(Stream(), Planner(Packing(4, "bfd"), window=16), "length", 0, lambda *of: found.append(of))
    next(iter(stream))
    longer = sum(len(each["input_ids"]) > 4 for each in documents(60, 15)[:16])
    assert found == [(longer, 16)]


def test_rows_of_data_in_order() -> None:
    """If nothing is shuffled, they come in the order of their earliest documents; iterating yields the same rows."""
    found = documents(40)
    planner = Planner(Packing(12, "bfd"), shuffles=False, window=16)
    order = UnitOrder(Sequential(40), planner, DocumentLengths(found, "length"), 0, 0)
    packed = PackedLoader(found, PackedBatchSampler(lambda _: order, 1, False), DocumentCollate("rows"))
    earliest = [min(token // 100 for token in tokens(batch)[0]) for batch in packed]
    assert earliest == sorted(earliest)
    assert [rows for rows, _ in read(packed)] == [tokens(batch) for batch in packed]
