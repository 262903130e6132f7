"""Hostile files in a checkpoint that are not what they seem: pipes, links, sparse and growing files, long headers."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.checkpoint_folder import copy_of, make_checkpoint
from tests.end_to_end.hostile.doors import Answer, ask
from tests.resealing import reseal

WEIGHTS = "model.safetensors"
WEIGHT = "layers.0.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"))


def all_doors(checkpoint: Path, other: Path, folder: Path, declared: float = 0) -> dict[str, Answer]:
    """The answers of the doors that read a checkpoint."""
    calls: dict[str, list[str | Path]] = {
        "resume": ["resume", folder / "output", checkpoint],
        "diff": ["checkpoints", "diff", checkpoint, other],
        "verify": ["checkpoints", "verify", checkpoint],
        "list": ["checkpoints", "list", checkpoint.parent],
        "prune": ["checkpoints", "prune", checkpoint.parent, "--keep", "1"],
        "show": ["checkpoints", "show", checkpoint, "--tensors"],
    }
    return dict(zip(calls, ask(*calls.values(), declared=declared), strict=True))


def header(shape: str, offsets: str = "[0,4]", name: str = WEIGHT) -> bytes:
    """A file with this header and the bytes of one number."""
    encoded = f'{{"{name}":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}'.encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(4)


NUMBER = "9" * 4000
HEADERS = {
    "many dimensions of many digits": (header(f"[{','.join([NUMBER] * 6000)}]"), "a number of more than 1000 digits"),
    "many dimensions": (header(f"[{','.join(['1'] * 6000)}]"), f"{WEIGHT}' in its header has 6000 dimensions"),
    "a dimension of many digits": (header(f"[{'9' * 900}]"), f"{WEIGHT}' in its header has the shape"),
    "a negative dimension": (header("[-1,-1]"), f"{WEIGHT}' in its header has the shape [-1, -1]"),
    "offsets before the data": (header("[1]", "[-4,0]"), f"{WEIGHT}' in its header has the data_offsets [-4, 0]"),
    "offsets beyond the data": (header("[2]", "[0,8]"), f"ends with '{WEIGHT}' at byte"),
    "offsets far beyond the data": (header(f"[{1 << 60}]", f"[0,{1 << 62}]"), f"ends with '{WEIGHT}' at byte"),
    "offsets with a gap": (header("[1]", "[4,8]"), f"{WEIGHT}' of F32 and shape [1] has the data_offsets [4, 8]"),
    "a huge length": (struct.pack("<Q", 1 << 62) + b"{}", "its header has 4611686018427387904 bytes"),
    "a length beyond the file": (struct.pack("<Q", 90_000_000) + b"{}", "ends after"),
    "a name that is not Unicode": (header("[1]", name="\\ud800"), "not Unicode"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_refused(whole: Path, tmp_path: Path, name: str) -> None:
    """The weights, with a matching digest: refused with the file, and the tensor and its field where there is one."""
    data, words = HEADERS[name]
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    (checkpoint / WEIGHTS).write_bytes(data)
    reseal(checkpoint)
    answers = all_doors(checkpoint, whole, tmp_path, len(data) / 2**20)
    assert answers["resume"].refuses(WEIGHTS, words), answers["resume"]
    assert answers["show"].refuses(WEIGHTS, words), answers["show"]
    assert answers["diff"].refuses(WEIGHTS, words, code=2), answers["diff"]


def sparse(path: Path) -> None:
    os.truncate(path, 40 << 30)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(path: Path) -> None:
    outside = path.parents[2] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def made_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


IRREGULAR = {
    "sparse": (sparse, "has 42949672960 bytes and should have"),
    "a pipe": (piped, "not a regular file"),
    "a link": (linked, "leads out of"),
    "a folder": (made_folder, "not a regular file"),
}


@pytest.mark.parametrize("file", [WEIGHTS, "run_state.json", "optimizer.safetensors"])
@pytest.mark.parametrize("name", IRREGULAR)
def test_an_irregular_file_is_refused(whole: Path, tmp_path: Path, name: str, file: str) -> None:
    """Without reading it: a file that is larger than declared, and what is no file."""
    spoil, words = IRREGULAR[name]
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    spoil(checkpoint / file)
    answers = all_doors(checkpoint, whole, tmp_path)
    assert answers["resume"].refuses(file, words), answers["resume"]
    assert answers["prune"].refuses(file, words), answers["prune"]
    for door in ("verify", "list"):
        assert answers[door].code == 1
        assert file in answers[door].output
        assert words in answers[door].output, answers[door]


@pytest.mark.parametrize("spoil", [piped, linked, made_folder])
def test_an_irregular_manifest_is_refused(whole: Path, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """By every door, as damage; a newest checkpoint with one is not pruned around."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    spoil(checkpoint / "manifest.json")
    answers = all_doors(checkpoint, whole, tmp_path)
    for door in ("resume", "show"):
        assert answers[door].refuses("checkpoint-2", "its manifest.json is not read"), answers[door]
    assert answers["diff"].refuses("manifest.json", code=2)
    for door in ("verify", "list"):
        assert (answers[door].code, "manifest.json is not read" in answers[door].output) == (1, True), answers[door]


def test_an_endless_manifest_is_refused(whole: Path, tmp_path: Path) -> None:
    """It is read up to its limit."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    os.truncate(checkpoint / "manifest.json", 40 << 30)
    answers = all_doors(checkpoint, whole, tmp_path)
    assert answers["resume"].refuses("manifest.json is invalid: it is longer than 67108864 bytes"), answers["resume"]


GROWS = """
import resource, sys

resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))
file = open(sys.argv[1], "ab", 0)
print("ready", flush=True)
while True:
    file.write(bytes(1 << 20))
"""


def test_a_file_that_grows_is_refused(whole: Path, tmp_path: Path) -> None:
    """While another process writes to it, and however fast."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    with subprocess.Popen(
        [sys.executable, "-c", GROWS, str(checkpoint / WEIGHTS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            answers = all_doors(checkpoint, whole, tmp_path)
        finally:
            writer.kill()
    assert answers["resume"].refuses(WEIGHTS, "and should have"), answers["resume"]
    assert answers["verify"].code == 1


def test_a_large_note_is_cut(whole: Path, tmp_path: Path) -> None:
    """A damaged.txt of 3 GiB takes neither time nor memory."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    aside = checkpoint.rename(checkpoint.with_name("damaged-1-checkpoint-2"))
    (aside / "damaged.txt").write_text("because it is spoiled. " + "x" * 100_000)
    os.truncate(aside / "damaged.txt", 3 << 30)
    (text, document) = ask(
        ["checkpoints", "list", aside.parent],
        ["checkpoints", "list", aside.parent, "--json"],
    )
    assert (text.code, "because it is spoiled" in text.output) == (0, True)
    (only,) = json.loads(document.output)["checkpoints"]
    assert len(only["reason"]) <= 1 << 16


def test_a_pipe_for_a_note_is_not_opened(whole: Path, tmp_path: Path) -> None:
    """The list says that the checkpoint was set aside."""
    aside = copy_of(whole, tmp_path / "spoiled")
    aside = aside.rename(aside.with_name("damaged-1-checkpoint-2"))
    os.mkfifo(aside / "damaged.txt")
    (listed,) = ask(["checkpoints", "list", aside.parent])
    assert (listed.code, "set aside" in listed.output) == (0, True)
