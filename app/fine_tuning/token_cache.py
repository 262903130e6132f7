"""Tokens of samples on the disk, under digests of what they were made from, so that no later run tokenizes them again.

A file holds the tokens of a window of consecutive samples. Its name is a digest of the samples, the tokenizer and the
choices, so nothing has to be removed when one of them changes. What is read may come from elsewhere: a file counts only
if it is regular, has exactly the size that its head states, and holds tokens of the vocabulary.

Layout, little-endian: MAGIC; the number of samples, n, and of tokens, t, as uint64; n uint32 lengths; t int32 tokens;
t int32 labels.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from attrs import asdict, evolve, frozen

from hexloop.app.fine_tuning.samples import Choices, Tokens
from hexloop.domain.limits import limits
from hexloop.domain.regular_files import open_regular, write_atomically
from hexloop.ports.batches import IGNORED_LABEL

MAGIC = b"hextoks1"
HEAD = struct.Struct("<8sQQ")

WINDOW = 512
"""Samples of a file."""


class DamagedTokensError(ValueError):
    """Raised within this module for a file that is not what `TokenCache.write` writes."""


@frozen
class TokenCache:
    """A folder with the tokens of windows of samples. words: the size of the vocabulary, which bounds what is read."""

    folder: Path
    words: int

    def holds(self, digest: str) -> bool:
        """Return whether there is a file of a digest, of the size that it states."""
        return self.read(digest, ()) is not None

    def read(self, digest: str, numbers: Iterable[int]) -> list[Tokens] | None:
        """Return the samples of these numbers within a window; None if its file is missing or damaged."""
        try:
            with self._opened(digest) as (file, lengths, total):
                starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
                first = HEAD.size + 4 * len(lengths)
                return [self._sample(file, first, total, starts, number) for number in numbers]
        except (OSError, DamagedTokensError):
            return None

    def lengths(self, digest: str) -> Any:
        """Return the number of tokens of each sample of a window; None if its file is missing or damaged."""
        try:
            with self._opened(digest) as (_, lengths, _):
                return lengths
        except (OSError, DamagedTokensError):
            return None

    def write(self, digest: str, samples: Sequence[Tokens]) -> bool:
        """Write the samples of a window, and return whether that was possible: a full disk is no error."""
        lengths = np.asarray([len(each.input_ids) for each in samples], "<u4")
        total = int(lengths.sum(dtype=np.int64))
        if _size(len(samples), total) > limits().token_bytes:
            return False
        parts = [
            np.fromiter((token for tokens in part for token in tokens), "<i4", total)
            for part in ([each.input_ids for each in samples], [each.labels for each in samples])
        ]
        head = HEAD.pack(MAGIC, len(samples), total)
        try:
            write_atomically(
                self._path(digest), b"".join([head, lengths.tobytes(), *(part.tobytes() for part in parts)])
            )
        except OSError:
            return False
        return True

    @contextmanager
    def _opened(self, digest: str) -> Iterator[tuple[BinaryIO, Any, int]]:
        """Open the file of a digest: with the lengths of its samples, and the number of its tokens."""
        with os.fdopen(open_regular(self._path(digest)), "rb", buffering=0) as file:
            samples, total = _head(file)
            lengths = _values(file, HEAD.size, samples, "<u4")
            if int(lengths.sum(dtype=np.int64)) != total:
                raise DamagedTokensError("the lengths are not those of the tokens")
            yield file, lengths, total

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / f"{digest[2:]}.tokens"

    def _sample(self, file: BinaryIO, first: int, tokens: int, starts: Any, number: int) -> Tokens:
        """Return a sample. first: the byte where the tokens start. Raises DamagedTokensError."""
        if not 0 <= number < len(starts) - 1:
            raise DamagedTokensError("it has fewer samples")
        start, count = int(starts[number]), int(starts[number + 1] - starts[number])
        ids = _values(file, first + 4 * start, count, "<i4")
        labels = _values(file, first + 4 * (tokens + start), count, "<i4")
        known = (ids >= 0) & (ids < self.words)
        labelled = (labels == IGNORED_LABEL) | ((labels >= 0) & (labels < self.words))
        if not (count and known.all() and labelled.all()):
            raise DamagedTokensError("the tokens are not of the vocabulary")
        return Tokens(ids.tolist(), labels.tolist())


def _head(file: BinaryIO) -> tuple[int, int]:
    """Return the number of samples and of tokens. Raises DamagedTokensError if the file has another size."""
    size, data = os.fstat(file.fileno()).st_size, file.read(HEAD.size)
    if len(data) != HEAD.size:
        raise DamagedTokensError("it is cut off")
    magic, samples, tokens = HEAD.unpack(data)
    if magic != MAGIC or size > limits().token_bytes or size != _size(samples, tokens):
        raise DamagedTokensError("it is not a file of tokens, or is cut off")
    return samples, tokens


def _size(samples: int, tokens: int) -> int:
    """Return the size of a file."""
    return HEAD.size + 4 * (samples + 2 * tokens)


def _values(file: BinaryIO, offset: int, count: int, kind: str) -> Any:
    file.seek(offset)
    data = file.read(4 * count)
    if len(data) != 4 * count:
        raise DamagedTokensError("it is cut off")
    return np.frombuffer(data, kind)


def default_folder() -> Path:
    """Return the folder of tokens within the cache of `datasets`, as its environment variables name it."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    cache = os.environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")
    return Path(cache).expanduser() / "hexloop-tokens"


# Digests


def digest_of_samples(samples: Iterable[Any], basis: str) -> str | None:
    """Return the digest under which the tokens of samples are kept; None if they hold what has no JSON form.

    basis: the digest of what makes tokens of them.
    """
    digest = hashlib.blake2b(basis.encode(), digest_size=20)
    try:
        for sample in samples:
            digest.update(json.dumps(sample, sort_keys=True, ensure_ascii=False, allow_nan=False).encode("utf-8"))
            digest.update(b"\n")
    except (TypeError, ValueError):
        return None
    return digest.hexdigest()


def digest_of_tokenization(tokenizer: Any, choices: Choices) -> str:
    """Return a digest of what makes tokens of samples: the tokenizer as it is saved, the choices and the releases.

    What a formatting function returns is among the samples, and all tokens of a long sample are kept.
    """
    import tokenizers
    import transformers

    made = {
        "format": MAGIC.decode(),
        "releases": [transformers.__version__, tokenizers.__version__],
        "kind": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "choices": asdict(evolve(choices, formatting=None, longest=None)),
    }
    digest = hashlib.blake2b(json.dumps(made, sort_keys=True).encode(), digest_size=20)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(folder)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
