"""`hexloop checkpoints diff` finds the first difference and its size."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hexloop.adapters.contents.safetensors_files import ITEM_BYTES, join, tensor_file
from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.trainable.torch.serialization import TYPES, tensor_part
from hexloop.app.assembly.torch import weights as comparison
from hexloop.app.command_line.checkpoints.diff import compare_tensors
from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.ports.storage import File, Storage
from tests.end_to_end.small.documents import split
from tests.unit.command_line.commands import Commands
from tests.unit.command_line.small_checkpoints import flip, saved

FIRST, SECOND = "one/checkpoint-20", "two/checkpoint-20"


def checkpoint_of(storage: Storage, step: int, *files: File) -> None:
    """Create a checkpoint with these files only."""
    name = f"checkpoint-{step}"
    stored = {file.path: storage.write(f"{name}/{file.path}", file.chunks) for file in files}
    manifest = Manifest("run", "session", {}, None, step, 1, {}, stored)
    storage.write(f"{name}/manifest.json", [manifest.to_json()])


def weights(values: dict[str, torch.Tensor], path: str = "model.safetensors") -> File:
    return tensor_file(path, join(tensor_part(name, value) for name, value in values.items()))


def test_identical_runs_are_equal(commands: Commands) -> None:
    """Names, sessions and clock readings are ignored unless --strict is given."""
    saved(LocalStorage("one"), "morning", 10, 20)
    twin = saved(LocalStorage("two"), "evening", 10)
    twin.save(20, eval_loss=0.0)
    outcome = commands("checkpoints", "diff", FIRST, SECOND)
    assert (outcome.code, outcome.output) == (0, f"{FIRST} and {SECOND} are equal.\n")
    counts = commands("checkpoints", "diff", FIRST, SECOND, "--all")
    assert counts.code == 0
    assert "5 tensors compared, none different" in counts.output
    strict = commands("checkpoints", "diff", FIRST, SECOND, "--strict")
    assert strict.code == 1
    assert strict.output.splitlines()[-1] == '  run_state.json: run is "morning" and "evening"'


def test_checkpoints_of_both_layouts_are_compared(commands: Commands) -> None:
    """Documents in a file each, as in hexloop 0.1, equal the same documents in one file, and differ field by field."""
    saved(LocalStorage("one"), "run", 10, 20)
    other = saved(LocalStorage("two"), "run", 10)
    other.save(20, eval_loss=0.0)
    split(Path(SECOND).absolute())
    outcome = commands("checkpoints", "diff", FIRST, SECOND, "--all")
    assert (outcome.code, outcome.output.splitlines()[0]) == (0, f"{FIRST} and {SECOND} are equal.")
    other.save(30, eval_loss=1.0)
    told = commands("checkpoints", "diff", SECOND, "two/checkpoint-30", "--all").output
    assert "  run_state.json: step is 20 and 30, 10 apart" in told


def test_a_users_file_with_the_name_of_a_document_is_compared_too(commands: Commands) -> None:
    """The document is reported with the name that hexloop's own files have beside the user's."""
    for folder, mine, own in (("one", 1, "a"), ("two", 2, "b")):
        together = {"schema_version": 2, "run_state": {"schema_version": 1}, "data": {"schema_version": 1, "own": own}}
        checkpoint_of(
            LocalStorage(folder),
            20,
            File("data.json", [json.dumps({"mine": mine}).encode()]),
            File("run_state.json", [json.dumps(together).encode()]),
        )
    told = commands("checkpoints", "diff", FIRST, SECOND, "--all").output
    assert "  data.json: mine is 1 and 2, 1 apart" in told
    assert '  hexloop-data.json: own is "a" and "b"' in told


def test_first_different_tensor_is_shown_with_its_largest_difference(commands: Commands) -> None:
    """Weights come first, with the element that differs most and both values; URLs work too."""
    url = f"memory://bucket/{uuid.uuid4().hex}"
    saved(LocalStorage("one"), "run", 10, 20)
    other = saved(FsspecStorage(url), "run", 10)
    other.trainable.model.parameters[2] = -0.25
    other.save(20, eval_loss=3.0, weight=20.125)
    outcome = commands("checkpoints", "diff", FIRST, f"{url}/checkpoint-20")
    assert outcome.code == 1
    assert outcome.output.splitlines() == [
        f"{FIRST} and {url}/checkpoint-20 differ, first in:",
        "  model: tensor weight, F64 [3]: 2 of 3 elements differ, by at most 0.25, at [2] (0 and -0.25)",
    ]
    everything = commands("checkpoints", "diff", FIRST, f"{url}/checkpoint-20", "--all").output.splitlines()
    assert "  run_state.json: history[1].eval_loss is 0.0 and 3.0, 3 apart" in everything
    assert "  run_state.json: best_step is 20 and 10, 10 apart" in everything
    assert "5 tensors compared, 1 different" in everything
    reported = json.loads(commands("checkpoints", "diff", FIRST, f"{url}/checkpoint-20", "--json").output)
    (difference,) = reported["differences"]
    assert (difference["name"], difference["elements"]) == ("weight", [2, 3])
    assert difference["largest"] == {"difference": 0.25, "index": [2], "values": [0.0, -0.25]}


def test_missing_and_reshaped_tensors_are_reported(commands: Commands) -> None:
    """Each is reported with its kind and side; shards of one model are compared as one."""
    one, two, both = torch.arange(6.0).reshape(2, 3), torch.arange(6.0), torch.ones(2, dtype=torch.bfloat16)
    checkpoint_of(LocalStorage("one"), 20, weights({"reshaped": one, "mine": one, "both": both}))
    first = weights({"both": both}, "model-00001-of-00002.safetensors")
    second = weights({"reshaped": two, "theirs": two}, "model-00002-of-00002.safetensors")
    index = File("model.safetensors.index.json", [b'{"weight_map": {}}'])
    checkpoint_of(LocalStorage("two"), 20, first, second, index)
    outcome = commands("checkpoints", "diff", FIRST, SECOND, "--all")
    assert outcome.code == 1
    assert set(outcome.output.splitlines()[1:5]) == {
        "  model: tensor reshaped is F32 [2, 3] in the first and F32 [6] in the second",
        "  model: tensor mine is only in the first, F32 [2, 3]",
        "  model: tensor theirs is only in the second, F32 [6]",
        "4 tensors compared, 3 different",
    }


def test_documents_and_other_files_are_compared(commands: Commands) -> None:
    """JSON is compared by field and type, a long list of numbers as one field, other files by bytes."""
    stream = list(range(20))
    document = {"schema_version": 1, "rate": 0.5, "flag": 1, "nan": {"$number": "nan"}, "stream": stream, "mine": [1]}
    changed = {**document, "rate": 0.75, "flag": True, "stream": [*stream[:18], 7, 8]}
    del changed["mine"]
    vocabulary = File("vocab.txt", [b"a\nb\n"])
    checkpoint_of(LocalStorage("one"), 20, File("scaler.json", [json.dumps(document).encode()]), vocabulary)
    other = File("scaler.json", [json.dumps(changed).encode()])
    checkpoint_of(LocalStorage("two"), 20, other, File("vocab.txt", [b"a\nc\n"]), File("extra.txt", [b"x"]))
    outcome = commands("checkpoints", "diff", FIRST, SECOND, "--all")
    assert outcome.output.splitlines()[1:] == [
        "  scaler.json: rate is 0.5 and 0.75, 0.25 apart",
        "  scaler.json: flag is 1 and true",
        "  scaler.json: stream: 2 of 20 elements differ, first [18], 18 and 7",
        "  scaler.json: mine is only in the first, [1]",
        "  extra.txt is only in the second",
        "  vocab.txt has different bytes: 4 in the first, 4 in the second",
        "0 tensors compared, none different",
        "8 fields compared, 4 different",
        "2 files compared, 2 different",
    ]


def test_unreadable_documents_are_compared_by_bytes(commands: Commands) -> None:
    """JSON with duplicate keys is compared by bytes; invalid tensor files are a usage error (2)."""
    for folder, text in (("one", b'{"a": 1, "a": 2}'), ("two", b'{"a": 1, "a": 3}')):
        checkpoint_of(LocalStorage(folder), 20, File("tokenizer.json", [text]))
        checkpoint_of(LocalStorage(folder), 30, File("extra.safetensors", [text]))
    outcome = commands("checkpoints", "diff", FIRST, SECOND)
    assert outcome.code == 1
    assert outcome.output.splitlines()[1:] == [
        "  tokenizer.json has different bytes: 16 in the first, 16 in the second"
    ]
    assert commands("checkpoints", "diff", FIRST, FIRST).code == 0
    broken = commands("checkpoints", "diff", "one/checkpoint-30", "two/checkpoint-30")
    assert broken.code == 2
    assert "extra.safetensors is not a safetensors file" in broken.errors


def test_damaged_checkpoints_are_not_compared(commands: Commands) -> None:
    """Damaged checkpoints are a usage error (2), not a difference (1), and both are reported."""
    for folder in ("one", "two"):
        saved(LocalStorage(folder), "run", 20)
        flip(LocalStorage(folder), "checkpoint-20/model.safetensors")
    outcome = commands("checkpoints", "diff", FIRST, SECOND)
    assert outcome.code == 2
    assert outcome.errors.count("model.safetensors does not hold the bytes that were stored") == 2


@pytest.mark.parametrize("dtype", TYPES)
def test_every_dtype_is_compared(dtype: str) -> None:
    """One changed bit of the last element is found, and elements are shown in their own type."""
    one = torch.ones(3, 4).to(TYPES[dtype])
    other = one.clone()
    other.view(torch.uint8).view(-1)[-ITEM_BYTES[dtype]] ^= 1
    found = compare_tensors("model", "w", tensor_part("w", one), tensor_part("w", other))
    assert found is not None
    assert found.elements == (1, 12)
    assert found.largest is not None
    assert found.largest.index == (2, 3)
    assert found.largest.difference > 0
    assert found.largest.values[0] != found.largest.values[1]
    assert compare_tensors("model", "w", tensor_part("w", one), tensor_part("w", one.clone())) is None


def test_nan_is_the_largest_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is the largest difference in any block; two NaNs or signed zeros differ in bits only."""
    monkeypatch.setattr(comparison, "BLOCK", 4)
    one = torch.zeros(12)
    other = one.clone()
    other[1], other[6], other[10] = 5.0, float("nan"), 9.0
    found = compare_tensors("model", "w", tensor_part("w", one), tensor_part("w", other))
    assert found is not None
    assert found.elements == (3, 12)
    assert found.largest is not None
    assert found.largest.index == (6,)
    assert "by at most nan, at [6] (0 and nan)" in str(found)
    signed = compare_tensors("model", "w", tensor_part("w", one), tensor_part("w", -one))
    assert signed is not None
    assert str(signed) == "  model: tensor w, F32 [12]: 12 of 12 elements differ, only in their bits"
    scalar = compare_tensors("model", "w", tensor_part("w", torch.tensor(1)), tensor_part("w", torch.tensor(-(2**62))))
    assert scalar is not None
    assert scalar.largest is not None
    assert scalar.largest.index == ()


def test_tensors_are_streamed(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that differs is read twice, to verify it and to compare it; and its end, which its header describes."""
    many = {f"w{number:03}": torch.full((1000,), float(number)) for number in range(100)}
    for folder, last in (("one", 1.0), ("two", 2.0)):
        changed = {**many, "w099": torch.full((1000,), last)}
        checkpoint_of(LocalStorage(folder), 20, weights(changed), weights(many, "optimizer.safetensors"))
    reads: list[tuple[str, int]] = []
    usual = LocalStorage.read

    def read(self: LocalStorage, path: str, start: int = 0) -> Iterator[memoryview]:
        reads.append((path, start))
        return usual(self, path, start)

    monkeypatch.setattr(LocalStorage, "read", read)
    assert commands("checkpoints", "diff", FIRST, SECOND, "--all").code == 1
    tensors_read = [start for path, start in reads if path.endswith("model.safetensors")]
    assert len(tensors_read) == 6
