"""Data sets whose samples become tokens: lazily, in worker processes before, and as streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from hexloop.app.assembly.torch.data import only_stored
from hexloop.app.fine_tuning import data
from hexloop.app.fine_tuning.data import Preparation, TokenizedDataset, TokenizedStream
from hexloop.app.fine_tuning.samples import Choices, Tokenization, Tokens
from tests.end_to_end.fine_tuning.small import conversations, prompts, texts, tokenizer


class Counting(Tokenization):
    """Counts the samples that are tokenized in this process."""

    count = 0

    def __call__(self, samples: Sequence[Any]) -> list[Tokens]:
        Counting.count += len(samples)
        return super().__call__(samples)


@pytest.fixture(autouse=True)
def _reset() -> None:
    Counting.count = 0


def counting(**choices: Any) -> Counting:
    return Counting(tokenizer(), Choices(**choices))


def prepared(dataset: Any, **options: Any) -> Any:
    return Preparation(counting(), **options)(dataset)


class Rows(Dataset[Any]):
    """A map-style data set of torch, that adds a random word to its texts."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return {"text": f"{texts()[index]['text']} {int(torch.randint(100, ()))}"}


class Lines(IterableDataset[Any]):
    """A stream without a length, with epochs and a state."""

    def __init__(self) -> None:
        self.epoch = self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for row in texts()[self.read :]:
            self.read += 1
            yield row
        self.read = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


@pytest.mark.parametrize("make", [list, datasets.Dataset.from_list])
@pytest.mark.parametrize("form", [texts, prompts, conversations])
def test_samples_become_tokens(make: Any, form: Any) -> None:
    """Lists and tables of `datasets` have the tokens of each sample, alone or several at a time."""
    found = prepared(make(form()))
    expected = [{"input_ids": each.input_ids, "labels": each.labels} for each in counting()(form())]
    assert [found[index] for index in range(6)] == expected
    assert found.__getitems__([4, 1, 4]) == [expected[4], expected[1], expected[4]]
    assert found[-1] == expected[-1]
    assert len(found) == 6
    with pytest.raises(IndexError):
        found[6]


def test_nothing_is_tokenized_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is tokenized when it is read, and not again while it is among those read last."""
    found = prepared(texts(6))
    assert Counting.count == 0
    found.__getitems__([0, 1, 0])
    assert Counting.count == 2
    found[1]
    assert Counting.count == 2
    monkeypatch.setattr(data, "KEPT_TOKENS", 20)
    for index in (2, 3, 2):
        found[index]
    assert Counting.count == 5


def test_first_samples_are_looked_at_without_a_trace() -> None:
    """Torch's generator stays as it is, and streams are not read."""
    before, lines = torch.random.get_rng_state(), Lines()
    preparation = Preparation(counting(assistant_only=True))
    (problem,) = preparation.problems(Rows(), {"a": Rows(), "b": lines}, lines, None, [])
    assert "the samples are no conversations" in problem
    assert torch.equal(torch.random.get_rng_state(), before)
    assert lines.read == 0


def test_tokens_stay_as_they_are() -> None:
    """Tokenized data, and data with input_ids, are passed on; names of several data sets stay."""
    tokens, preparation = [{"input_ids": [1, 2], "seq_lengths": [1, 1]}], Preparation(counting())
    found = preparation({"a": texts(), "b": tokens, "c": None})
    assert found["b"] is tokens
    assert found["c"] is None
    assert preparation(found["a"]) is found["a"]
    stream = preparation(Lines())
    assert preparation(stream) is stream


def test_which_data_are_only_stored() -> None:
    """Reading tokens may draw random numbers if reading the samples may, or if a function formats them."""
    assert only_stored(prepared(texts()))
    assert not only_stored(prepared(Rows()))
    assert not only_stored(TokenizedDataset(texts(), counting(formatting=str)))


@pytest.mark.parametrize("processes", [None, pytest.param(2, marks=pytest.mark.matrix)])
def test_tokens_are_kept(processes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tokenized before is read from the files by another data set of the same samples, even in part."""
    monkeypatch.setattr(data, "WINDOW", 4)
    rows = [{"text": f"{row['text']} {number}"} for number, row in enumerate(texts(11))]
    options: dict[str, Any] = {"processes": processes, "cache_folder": str(tmp_path / "tokens")}
    expected = [prepared(rows)[index] for index in range(11)]
    preparation = Preparation(counting(), **options)
    first = preparation(rows)
    preparation.fill({"train": first}, None)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tokens")}
    Counting.count = 0
    second = preparation(rows)
    preparation.fill(second)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tokens")} == files
    assert second.__getitems__(list(range(11))) == expected
    assert Counting.count == 0
    assert second.stored_lengths is not None
    assert second.stored_lengths([10, 0]) == [len(expected[10]["input_ids"]), len(expected[0]["input_ids"])]
    changed = preparation([*rows[:4], {"text": "another"}, *rows[5:]])
    preparation.fill(changed)
    assert len(files) == 3
    assert len(list(tmp_path.rglob("*.tokens"))) == 4  # one window has changed


def test_damaged_files_are_replaced_by_tokenizing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is damaged after the cache was filled is not used; its samples are tokenized when they are read."""
    monkeypatch.setattr(data, "WINDOW", 4)
    rows, preparation = texts(6), Preparation(counting(), cache_folder=str(tmp_path))
    found = preparation(rows)
    preparation.fill(found)
    for path in (each for each in tmp_path.rglob("*") if each.is_file()):
        path.write_bytes(path.read_bytes()[:-1])
    assert found.stored_lengths([0, 5]) == [len(found[0]["input_ids"]), len(found[5]["input_ids"])]
    assert found.__getitems__([0, 5]) == prepared(rows).__getitems__([0, 5])


def test_samples_without_a_digest_are_not_kept(tmp_path: Path) -> None:
    """Windows with what has no JSON form are tokenized when they are read; lengths are then not known before."""
    rows = [{**row, "made": object()} for row in texts(3)]
    preparation = Preparation(counting(), cache_folder=str(tmp_path))
    found = preparation(rows)
    preparation.fill(found)
    assert not list(tmp_path.iterdir())
    assert found.stored_lengths is None
    assert found[2] == prepared(texts(3))[2]


def test_formatted_samples_are_kept_by_what_they_become(tmp_path: Path) -> None:
    """The text that a function returns is in the digest: another function reads other files."""
    for formatting, word in ((lambda row: row["text"].lower(), "a"), (lambda row: row["text"].upper(), "A")):
        preparation = Preparation(Counting(tokenizer(), Choices(formatting=formatting)), cache_folder=str(tmp_path))
        found = preparation(texts(2))
        preparation.fill(found)
        assert str(tokenizer().decode(found[0]["input_ids"])).startswith(word)


@given(read=st.integers(0, 5))
def test_streams_keep_their_position(read: int) -> None:
    """A stream is tokenized row by row, and its own state says where it is."""
    expected = list(prepared(texts()).__getitems__(range(6)))
    stream = prepared(Lines())
    rows = iter(stream)
    assert list(itertools.islice(rows, read)) == expected[:read]
    other = prepared(Lines())
    other.load_state_dict(stream.state_dict())
    assert list(other) == expected[read:]
    stream.set_epoch(3)
    assert stream.dataset.epoch == 3
    with pytest.raises(TypeError):
        len(stream)


def test_streams_of_datasets() -> None:
    """They keep their state, and a shuffle buffer is still seen."""
    from hexloop.adapters.batches.torch.data_state import is_stateful

    source = datasets.Dataset.from_list(texts()).to_iterable_dataset(num_shards=2)
    assert list(prepared(source)) == list(prepared(texts()).__getitems__(range(6)))
    assert isinstance(prepared(source), TokenizedStream)
    assert is_stateful(prepared(source))
    assert not is_stateful(prepared(source.shuffle(buffer_size=3)))
