"""Cases in forked processes: what a case does to its process, be it a crash, a hang or lost memory, is a finding.

A process runs many cases, and notes each in memory that it shares with its parent before it starts it. So the parent
knows which case a process died of.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import json
import mmap
import os
import re
import resource
import select
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import BinaryIO, NoReturn

from attrs import define, field, frozen

SECONDS = 5.0
"""Processor time that a case may take."""

WAIT = 20.0
"""Seconds after which a case that waits for something is a hang; one that waits for the processor only is not."""

MEMORY = 500 << 20
"""Bytes by which the memory of a process may grow in a case."""

ADDRESSES = 2 << 30
"""Bytes of address space that are left to a process: a case that needs more fails before it exhausts the machine."""

LARGEST = 4 << 20
"""Bytes of a case."""

_SLOT = struct.Struct("<QddQ")  # cases started; when the present one was (0: none), by two clocks; its length


@frozen
class Finding:
    """A case that must not be. kind: "error", "crash", "hang" or "memory". detail: an error, or a line of code."""

    target: str
    kind: str
    detail: str
    data: bytes

    @property
    def key(self) -> str:
        """The same for all cases with the same cause, as far as can be told."""
        said, _, place = self.detail.rpartition(" | ")
        text = self.detail if said.startswith("AssertionError") else place
        cause = re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", "_", text)
        return f"{self.kind}-{hashlib.sha256(cause[:200].encode()).hexdigest()[:10]}"


@define
class Counts:
    """What came of the cases of a target."""

    cases: int = 0
    findings: dict[str, Finding] = field(factory=dict)
    repeated: int = 0

    def add(self, finding: Finding) -> bool:
        """Add a finding; return whether it is the first of its cause."""
        is_new = finding.key not in self.findings
        self.repeated += not is_new
        self.findings.setdefault(finding.key, finding)
        return is_new


RunCase = Callable[[bytes], None]


def supervise(name: str, run: RunCase, drive: Callable[[RunCase], None], deadline: float, counts: Counts) -> None:
    """Fork a process in which `drive` calls its argument with one case after the other, until it ends.

    It is killed at the deadline, in seconds of time.monotonic. name: of the target. run: runs a case; whatever it
    raises is a finding. counts: updated.
    """
    slot = mmap.mmap(-1, _SLOT.size + LARGEST)
    reader, writer = os.pipe()
    with tempfile.TemporaryFile(prefix="fuzz-") as output:
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(run, drive, slot, writer, output)
        os.close(writer)
        try:
            _watch(name, child, reader, slot, output, deadline, counts)
        finally:
            os.close(reader)
            slot.close()


def run_all(name: str, run: RunCase, cases: Iterable[bytes], seconds: float = 3600.0) -> Counts:
    """Run cases in one process, and in a further one after each that ended it."""
    counts, left, deadline = Counts(), list(cases), time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        before = counts.cases
        supervise(name, run, partial(_each, left), deadline, counts)
        left = left[max(counts.cases - before, 1) :]
    return counts


def _each(cases: Iterable[bytes], run: RunCase) -> None:
    for data in cases:
        run(data)


def _child(run: RunCase, drive: Callable[[RunCase], None], slot: mmap.mmap, writer: int, output: BinaryIO) -> NoReturn:
    """Run the cases, and never return."""
    try:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        faulthandler.enable(output.fileno(), all_threads=False)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + ADDRESSES, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")
        gc.freeze()  # so that a collection does not copy the memory shared with the parent
        drive(_recorder(run, slot, writer, output))
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _recorder(run: RunCase, slot: mmap.mmap, writer: int, output: BinaryIO) -> RunCase:
    started = 0

    def one(data: bytes) -> None:
        nonlocal started
        data = data[:LARGEST]
        started += 1
        slot[_SLOT.size : _SLOT.size + len(data)] = data
        peak = _peak()
        _SLOT.pack_into(slot, 0, started, time.monotonic(), time.process_time(), len(data))
        error = _error_of(run, data)
        _SLOT.pack_into(slot, 0, started, 0.0, 0.0, len(data))
        grown = _peak() - peak
        if error is None and grown > MEMORY:
            error = ("memory", f"{grown >> 20} MiB more than before")
        if error is not None:
            line = (json.dumps(error) + "\n").encode()
            os.write(writer, struct.pack("<II", len(line), len(data)) + line)
            _send(writer, data)
        if os.lseek(output.fileno(), 0, os.SEEK_CUR) > 1 << 20:
            os.ftruncate(output.fileno(), 0)
            os.lseek(output.fileno(), 0, os.SEEK_SET)
        if error is not None and error[0] == "memory":
            os._exit(0)

    return one


def _error_of(run: RunCase, data: bytes) -> tuple[str, str] | None:
    try:
        run(data)
    except MemoryError as error:
        gc.collect()
        return "memory", f"MemoryError: {error} | {_place(error)}"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"[:300].replace("\n", " ")
        return "error", f"{said} | {type(error).__name__} {_place(error)}"
    return None


def _place(error: BaseException) -> str:
    """Return the line of hexloop, or else of anything, that an error comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if "hexloop" in each.filename] or frames
    return f"{own[-1].filename.rpartition('/hexloop/')[2]}:{own[-1].lineno} in {own[-1].name}" if own else "?"


def _send(writer: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(writer, rest) :]


def _watch(
    name: str, child: int, reader: int, slot: mmap.mmap, output: BinaryIO, deadline: float, counts: Counts
) -> None:
    received, hanging = bytearray(), ""
    while True:
        if select.select([reader], [], [], 0.1)[0]:
            chunk = os.read(reader, 1 << 20)
            if not chunk:
                break
            received += chunk
            continue
        _, since, used, _ = _SLOT.unpack_from(slot)
        if since and (hanging := _hangs(child, since, used)):
            os.kill(child, signal.SIGABRT)  # so that faulthandler prints where it is
            break
        if time.monotonic() > deadline + (2 * WAIT if since else 0):
            break
    status = _reap(child, 0.0 if time.monotonic() > deadline and not hanging else 5.0)
    while chunk := os.read(reader, 1 << 20):
        received += chunk
    started, since, _, length = _SLOT.unpack_from(slot)
    counts.cases += started
    for kind, detail, data in _records(received):
        counts.add(Finding(name, kind, detail, data))
    data = bytes(slot[_SLOT.size : _SLOT.size + length])
    if hanging:
        counts.add(Finding(name, "hang", f"{hanging} | {_stack(output)}", data))
    elif since and status is not None:
        died = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        counts.add(Finding(name, "crash", f"{died} | {_stack(output)}", data))
    elif status:
        output.seek(0)
        raise RuntimeError(f"The process of {name} failed:\n{output.read()[-4000:].decode(errors='replace')}")


def _hangs(child: int, since: float, used: float) -> str:
    waited = time.monotonic() - since
    if waited > SECONDS and _processor_seconds(child) - used > SECONDS:
        return f"more than {SECONDS:g} s of processor time"
    return f"more than {WAIT:g} s" if waited > WAIT and _sleeps(child) else ""


def _sleeps(child: int) -> bool:
    """Return whether a process does not ask for the processor for a second."""
    for _ in range(20):
        if _fields(child)[:1] == ["R"]:
            return False
        time.sleep(0.05)
    return True


def _processor_seconds(child: int) -> float:
    values = _fields(child)
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK") if values else 0.0


def _fields(child: int) -> list[str]:
    """Return what the system says of a process, from its state on; nothing if it has ended."""
    try:
        with open(f"/proc/{child}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _reap(child: int, seconds: float) -> int | None:
    """Wait for a process and return its status, or None if it had to be killed after some seconds."""
    until = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)


def _records(received: bytearray) -> Iterable[tuple[str, str, bytes]]:
    position = 0
    while position + 8 <= len(received):
        line, size = struct.unpack_from("<II", received, position)
        kind, detail = json.loads(received[position + 8 : position + 8 + line])
        data = bytes(received[position + 8 + line : position + 8 + line + size])
        position += 8 + line + size
        yield kind, detail, data


def _stack(output: BinaryIO) -> str:
    """Return the innermost lines of the stack that faulthandler printed last."""
    output.seek(0)
    text = output.read().decode(errors="replace").rpartition("most recent call first")[2]
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', text)
    places = (f"{file.rpartition('/hexloop/')[2]}:{line} in {name}" for file, line, name in frames[:3])
    return " < ".join(places) or text[-300:].replace("\n", " ") or "?"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _status(entry: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{entry}:"))
