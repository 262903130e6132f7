"""Files of tokens: read as they were written, and never if they are damaged or hostile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.fine_tuning.samples import Choices, Tokens
from hexloop.app.fine_tuning.token_cache import (
    HEAD,
    MAGIC,
    TokenCache,
    default_folder,
    digest_of_samples,
    digest_of_tokenization,
)
from hexloop.domain.limits import reading_limits
from tests.end_to_end.fine_tuning.small import PLAIN, tokenizer

DIGEST = "ab" * 20
WORDS = 50

token_lists = st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=9)


def written(folder: Path, *samples: list[int]) -> tuple[TokenCache, Path]:
    """Return a cache with a window of samples whose first label does not count, and its file."""
    cache = TokenCache(folder, WORDS)
    assert cache.write(DIGEST, [Tokens(ids, [-100, *ids[1:]]) for ids in samples])
    (path,) = (each for each in folder.rglob("*") if each.is_file())
    return cache, path


@given(samples=st.lists(token_lists, max_size=6), data=st.data())
def test_windows_are_read_as_they_were_written(samples: list[list[int]], data: Any, tmp_path_factory: Any) -> None:
    """Any samples of a window, in any order, and the lengths of all."""
    cache, _ = written(tmp_path_factory.mktemp("cache"), *samples)
    numbers = data.draw(st.lists(st.sampled_from(range(len(samples))))) if samples else []
    expected = [Tokens(samples[number], [-100, *samples[number][1:]]) for number in numbers]
    assert cache.read(DIGEST, numbers) == expected
    assert list(cache.lengths(DIGEST)) == list(map(len, samples))


def test_missing_windows(tmp_path: Path) -> None:
    """There is nothing to read under another digest, or beyond the samples of a window."""
    cache, _ = written(tmp_path, [1, 2], [3])
    assert cache.holds(DIGEST)
    assert not cache.holds("cd" * 20)
    assert cache.lengths("cd" * 20) is None
    assert cache.read(DIGEST, [2]) is None
    assert cache.read(DIGEST, [-1]) is None


def head(samples: int, tokens: int, magic: bytes = MAGIC) -> bytes:
    return HEAD.pack(magic, samples, tokens)


def body(lengths: list[int], ids: list[int], labels: list[int]) -> bytes:
    return np.array([*lengths, *ids, *labels], "<i4").tobytes()


HOSTILE = {
    "empty": b"",
    "cut off in its head": head(1, 2)[:9],
    "cut off": head(1, 2) + body([2], [1, 2], [1, 2])[:-1],
    "longer": head(1, 2) + body([2], [1, 2], [1, 2]) + b"\0",
    "of another kind": head(1, 2, b"hextoks0") + body([2], [1, 2], [1, 2]),
    "of lengths that are too large": head(1, 2) + body([3], [1, 2], [1, 2]),
    "of lengths that are negative": head(2, 2) + body([3, -1], [1, 2], [1, 2]),
    "of huge numbers": head(1 << 62, 1 << 62),
    "of numbers whose product wraps around": head(4, (1 << 63) - 2),
    "of unknown words": head(1, 2) + body([2], [1, WORDS], [1, 2]),
    "of negative words": head(1, 2) + body([2], [1, -1], [1, 2]),
    "of unknown labels": head(1, 2) + body([2], [1, 2], [1, -3]),
    "of samples without tokens": head(1, 0) + body([0], [], []),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_damaged_files_are_not_read(data: bytes, tmp_path: Path) -> None:
    """A file that no run has written counts as none, and is replaced."""
    cache, path = written(tmp_path, [1, 2])
    path.write_bytes(data)
    assert cache.read(DIGEST, [0]) is None
    written(tmp_path, [1, 2])
    assert cache.read(DIGEST, [0]) == [Tokens([1, 2], [-100, 2])]


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    """What is not a regular file counts as none."""
    cache, path = written(tmp_path / "cache", [1, 2])
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert not cache.holds(DIGEST)
    path.unlink()
    os.mkfifo(path)
    assert not cache.holds(DIGEST)


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing is kept, and that is no error; nor is a window of too many tokens."""
    (tmp_path / "file").touch()
    assert not TokenCache(tmp_path / "file", WORDS).write(DIGEST, [Tokens([1], [1])])
    cache = TokenCache(tmp_path, WORDS)
    with reading_limits(token_bytes=HEAD.size + 4 * 5):
        assert not cache.write(DIGEST, [Tokens([1, 2], [1, 2])] * 2)
        assert cache.write(DIGEST, [Tokens([1, 2], [1, 2])])
        assert cache.holds(DIGEST)
    with reading_limits(token_bytes=HEAD.size + 4 * 4):
        assert not cache.holds(DIGEST)


def test_the_digest_of_samples() -> None:
    """It depends on every value and on their order, not on the order of keys; None if a value has no JSON form."""
    first, second = {"a": 1, "b": ["x"]}, {"a": 2}
    digests = [
        digest_of_samples(samples, basis)
        for samples, basis in (([first, second], "1"), ([second, first], "1"), ([first, second], "2"), ([first], "1"))
    ]
    assert len(set(digests)) == 4
    assert digest_of_samples([{"b": ["x"], "a": 1}, second], "1") == digests[0]
    assert digest_of_samples([{"a": object()}], "1") is None
    assert digest_of_samples([{"a": float("nan")}], "1") is None


def test_the_digest_of_a_tokenization() -> None:
    """It depends on the tokenizer and on choices that change tokens, not on the limit, and is the same every time."""
    same = [digest_of_tokenization(tokenizer(), Choices(longest=longest)) for longest in (None, None, 7)]
    assert len(set(same)) == 1
    with_token = tokenizer()
    with_token.add_tokens(["<new>"])
    ended = tokenizer()
    ended.eos_token = "<user>"
    others = [
        digest_of_tokenization(words, choices)
        for words, choices in (
            (tokenizer(PLAIN), Choices()),
            (with_token, Choices()),
            (ended, Choices()),
            (tokenizer(), Choices(completion_only=False)),
            (tokenizer(), Choices(assistant_only=True)),
            (tokenizer(), Choices(template=PLAIN)),
            (tokenizer(), Choices(text_field="story")),
        )
    ]
    assert len({*others, *same}) == len(others) + 1


def test_the_usual_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is within the cache of datasets, wherever the environment puts that."""
    for name in ("HF_DATASETS_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "huggingface" / "datasets" / "hexloop-tokens"
    for name, expected in (
        ("XDG_CACHE_HOME", "huggingface/datasets/hexloop-tokens"),
        ("HF_HOME", "datasets/hexloop-tokens"),
        ("HF_DATASETS_CACHE", "hexloop-tokens"),
    ):
        monkeypatch.setenv(name, str(tmp_path / name))
        assert default_folder() == tmp_path / name / expected
