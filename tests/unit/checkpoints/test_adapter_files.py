"""The files of adapters in a checkpoint: written and read with the same names and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.contents.adapter_files import (
    STATE,
    WEIGHTS,
    adapter_in,
    adapters_among,
    is_adapter_file,
    model_files,
    model_parts,
    model_paths,
    path_of,
    placed,
)
from hexloop.domain.errors import CheckpointError
from hexloop.ports.state import JSON, Part

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"  # which the format reserves
)
ADAPTERS = st.sampled_from(["default", "other", "third one"])
VALUES = st.binary(max_size=40)


def part(name: str, data: bytes) -> Part:
    """Return a tensor of bytes."""
    return Part(name, "U8", (len(data),), 0, len(data), lambda: memoryview(data))


@given(st.dictionaries(st.tuples(st.one_of(ADAPTERS.map(path_of), st.just(STATE)), NAMES), VALUES, min_size=1))
def test_what_is_written_is_read(tensors: dict[tuple[str, str], bytes]) -> None:
    """Whatever the tensors are called, each is in the file that its name begins with, and nowhere else."""
    parts = [part(f"{path}/{name}", data) for (path, name), data in tensors.items()]
    document = Part("adapters", JSON, (2,), 0, 2, lambda: memoryview(b"{}"))
    files = {file.path: b"".join(map(bytes, file.chunks)) for file in model_files([*parts, document], 1)}
    assert files.keys() == {path for path, _ in tensors}
    assert all(map(is_adapter_file, files))

    def open_file(path: str, start: int = 0, /) -> Iterator[memoryview]:
        yield memoryview(files[path])[start:]

    read = model_parts([*files, "optimizer.safetensors", "other/readme.safetensors"], open_file)
    assert {each.name: bytes(each.read()) for each in read} == {each.name: bytes(each.read()) for each in parts}
    assert [placed(each.name) for each in parts] == list(tensors)
    assert set(adapters_among(list(files))) == {adapter_in(path) for path in files} - {None}


def test_names_of_whole_models_have_no_file() -> None:
    """A module's name may have a slash, but no dot."""
    for name in ("layer.weight", "a/b.weight", "adapter_model/safetensors.weight", WEIGHTS, f"x/y/{WEIGHTS}/weight"):
        assert placed(name) is None
    assert placed(f"x/{WEIGHTS}/a.b") == (f"x/{WEIGHTS}", "a.b")


def test_a_whole_model_beside_adapters_is_what_is_read() -> None:
    """As checkpoints of hexloop 0.1 have both."""
    assert model_paths([WEIGHTS, "model.safetensors"]) == ["model.safetensors"]
    assert model_paths([f"other/{WEIGHTS}", WEIGHTS, STATE, "adapter_config.json"]) == [
        WEIGHTS,
        STATE,
        f"other/{WEIGHTS}",
    ]
    with pytest.raises(CheckpointError, match="has no weights"):
        model_parts(["optimizer.safetensors"], lambda *_: iter(()))


def test_tensors_of_both_kinds_are_not_mixed() -> None:
    """They could not be read again."""
    with pytest.raises(CheckpointError, match="only as one or the other"):
        list(model_files([part("layer.weight", b"1"), part(f"{WEIGHTS}/weight", b"2")], 1))


def test_only_the_first_process_writes_adapters() -> None:
    """The others hold empty parts of them."""
    empty = Part(f"{WEIGHTS}/weight", "U8", (4,), 0, 0, lambda: memoryview(b""))
    assert list(model_files([empty], 1, rank=1, writers=1)) == []
