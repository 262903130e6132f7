"""Hostile files of other libraries: an import refuses each with one line, within bounds, and changes nothing global."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - files of the other library
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hexloop
from tests.end_to_end.checkpoint_folder import make_checkpoint

MEASURED = """
import sys
from pathlib import Path
from hexloop.app.command_line import main
status = main(["checkpoints", "import", sys.argv[1], "--to", sys.argv[2]])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print("peak", int(peak.split()[1]) // 1024)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    return Path(hexloop.export_checkpoint(make_checkpoint(folder), folder / "foreign"))


def imported(folder: Path, to: Path) -> tuple[int, str, int]:
    """Run the command; return its exit code, its errors, and the largest memory of its process, in MiB."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURED, str(folder), str(to)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stderr.strip(), int(ended.stdout.rpartition("peak ")[2])


def saved(value: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(value, path)  # noqa: TID251 - a file of the other library


def raw(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def pickled(data: bytes, record: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    """An archive of torch with this pickle, and this storage under the name 0."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("archive/data.pkl", data)
            if record is not None:
                archive.writestr("archive/data/0", record)

    return write


def tensor(shape: tuple[int, ...], strides: tuple[int, ...], count: int = 1, offset: int = 0) -> bytes:
    """The pickle of a tensor with one storage of `count` floats."""
    key = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    key += pickle.dumps(count, 2)[2:-1] + b"tQ"
    inner = b"".join(pickle.dumps(each, 2)[2:-1] for each in (offset, shape, strides, False, None))
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + key + inner.replace(b"q\x00", b"") + b"tR."


def twice(path: Path) -> None:
    saved({"a": torch.ones(2)})(path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(archive.namelist()[0], b"N.")


def shared(levels: int) -> list[Any]:
    value: list[Any] = [0]
    for _ in range(levels):
        value = [value, value]
    return value


def truncated(path: Path) -> None:
    saved({"a": torch.ones(1000)})(path)
    os.truncate(path, 2000)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(Path(__file__))


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a view without strides": (pickled(tensor((500_000_000,), (0,)), b"0000"), "does not lie in its storage"),
    "a view beyond its storage": (pickled(tensor((2,), (1,)), b"0000"), "does not lie in its storage"),
    "an offset beyond its storage": (pickled(tensor((1,), (1,), offset=9), b"0000"), "does not lie in"),
    "a storage that is too short": (pickled(tensor((8,), (1,), 8), b"0000"), "has 4 bytes and should have 32"),
    "a storage that does not exist": (pickled(tensor((1,), (1,))), "no record of the storage '0'"),
    "a huge array of bytes": (pickled(b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."), "bytes are made of"),
    "a shared list": (saved(shared(40)), "document_values raises this limit"),
    "an encoding": (
        pickled(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x08\x00\x00\x00punycode\x86R."),
        "as 'punycode'",
    ),
    "compressed records": (
        pickled(b"\x80\x02]" + b"]" * 50_000_000 + b".", compression=zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "a sparse tensor": (saved({"a": torch.eye(3).to_sparse()}), "it names torch._utils._rebuild_sparse_tensor"),
    "a quantized tensor": (pickled(b"\x80\x02ctorch._utils\n_rebuild_qtensor\n."), "_rebuild_qtensor"),
    "a huge integer": (saved({"a": 1 << 5_000_000}), "an integer of 625001 bytes"),
    "many levels": (pickled(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."), "nested in more than 100 levels"),
    "a record twice": (twice, "exists twice"),
    "a truncated file": (truncated, "not an archive"),
    "no archive at all": (raw(b"PK" + bytes(100)), "not an archive of torch"),
    "something else": (raw(bytes(1000)), "the opcode 0x0"),
    "nothing": (raw(b""), "ends early"),
    "many opcodes": (pickled(b"\x80\x02" + b"N0" * 20_000_000 + b"N."), "more than 1000000 opcodes"),
    "a pipe": (fifo, "not a regular file"),
    "a link": (link, "leads out of its folder"),
    "code": (pickled(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."), "it names os.system"),
}


@pytest.mark.one_in(100)
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_within_bounds(good: Path, tmp_path: Path, name: str) -> None:
    """By the command line, with exit code 1 and one line that names the file; memory stays near that of torch."""
    import shutil

    write, reason = FILES[name]
    folder = shutil.copytree(good, tmp_path / "foreign")
    (folder / "scheduler.pt").unlink()
    write(folder / "scheduler.pt")
    size = 0 if name == "a pipe" else (folder / "scheduler.pt").stat().st_size

    status, message, peak = imported(folder, tmp_path / "to")

    assert status == 1
    assert "scheduler.pt" in message
    assert reason in message
    assert len(message.splitlines()) == 1
    assert "weights_only" not in message
    assert peak < BARE + 200 + size // (1 << 20)
    assert not (tmp_path / "to").exists()


BARE = 400
"""MiB of a process that has imported torch and hexloop, generously."""


def test_a_file_that_takes_too_much_memory_or_time_is_refused(good: Path, tmp_path: Path) -> None:
    """The limits are those of the process that reads; the message names the file and the limit."""
    import shutil

    folder = shutil.copytree(good, tmp_path / "foreign")
    torch.save({"a": list(range(1 << 19))}, folder / "scheduler.pt")  # noqa: TID251 - a file of the other library
    with (
        hexloop.reading_limits(import_memory_bytes=1 << 20),
        pytest.raises(hexloop.CheckpointError, match=r"scheduler\.pt was not read: .* import_memory_bytes raises"),
    ):
        hexloop.import_checkpoint(folder, tmp_path / "to")
    with (
        hexloop.reading_limits(import_seconds=1),
        pytest.raises(hexloop.CheckpointError, match=r"scheduler\.pt.* import_seconds raises|scheduler\.pt is invalid"),
    ):
        hexloop.import_checkpoint(folder, tmp_path / "to")


class Trusted:
    """A class on torch's list of the user."""

    def __init__(self, number: int) -> None:
        self.number = number


def loads_beside_imports(good: Path, folder: Path, rounds: int) -> None:
    """Load a file with a class of the user's in one thread while the other imports."""
    path, failures, finished = folder / "own.pt", list[str](), threading.Event()
    torch.save({"own": Trusted(3)}, path)  # noqa: TID251 - a file of the user

    def load() -> None:
        while not finished.is_set():
            try:
                found = torch.load(path, weights_only=True)["own"]  # noqa: TID251 - a file of the user
                if type(found) is not Trusted or found.number != 3:
                    failures.append(repr(found))
            except Exception as error:
                failures.append(repr(error))

    torch.serialization.add_safe_globals([Trusted])
    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(rounds):
            hexloop.import_checkpoint(good, folder / str(number))
    finally:
        finished.set()
        thread.join()
        allowed = set(torch.serialization.get_safe_globals())
        torch.serialization.clear_safe_globals()
    assert not failures
    assert Trusted in allowed


@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_an_import_does_not_disturb_loads_of_another_thread(good: Path, tmp_path: Path) -> None:
    """Torch's list of allowed classes is never changed, so the user's own loads work at any moment."""
    loads_beside_imports(good, tmp_path, rounds=1000)


def test_a_file_that_changes_while_it_is_read_is_refused(good: Path, tmp_path: Path) -> None:
    """Tensors are read from the file that was described; one that became shorter is refused."""
    from hexloop.app.assembly.torch.transformers_checkpoints.reading import pickled_files

    torch.save({"a": torch.ones(10_000)}, tmp_path / "a.pt")  # noqa: TID251 - a file of the other library
    with pickled_files(str(tmp_path), ["a.pt"]) as files:
        os.truncate(tmp_path / "a.pt", 5000)
        with pytest.raises(hexloop.CheckpointError, match="was changed while it was read"):
            files.read("a.pt")


def test_the_legacy_format_is_read(tmp_path: Path) -> None:
    """Files of torch before 1.6, with several views of one storage."""
    from hexloop.app.assembly.torch.transformers_checkpoints.reading import pickled_files

    base = torch.arange(12.0).reshape(3, 4)
    value = {"base": base, "turned": base.t(), "step": torch.tensor(7), "name": "x"}
    torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=False)  # noqa: TID251 - as above
    with pickled_files(str(tmp_path), ["a.pt"]) as files:
        found = files.read("a.pt")
    assert torch.equal(found["turned"], base.t())
    assert found["turned"].data_ptr() == found["base"].data_ptr()
    assert (int(found["step"]), found["name"]) == (7, "x")
