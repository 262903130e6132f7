"""A Python interpreter that has imported torch and hexloop: a program of a test starts in 0.1 s instead of 4 s.

`warm_python()` returns the path of an executable that takes the words of `python`: `-c`, `-m` or a script, with `-u`,
`-W` and `-X` before them. It passes its working directory, environment and standard streams to a server, which forks a
process for the program, and forwards signals and the exit status. The server belongs to one process of pytest and ends
with it.

Not for a test of what is imported, of the environment at the start of Python or torch (other than OMP_NUM_THREADS), of
the order of sets (all programs have one seed of hashes), of the memory of a process, of its group, or of signals other
than those in `FORWARDED`. Children of a program are started by `sys.executable`, which is not warm.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import random
import runpy
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = ("torch._dynamo", "hexloop.app.trainer.trainer", "hexloop.app.assembly.torch.framework", "accelerate.state")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
HEAD = struct.Struct("!II")
"""The bytes of a client's message, and the number of its words."""

STATUS = struct.Struct("!i")

CLIENT = """\
#!{python} -IS
import os, signal, socket, struct, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
parts = [*sys.argv[1:], os.getcwd(), *(f"{{name}}={{value}}" for name, value in os.environ.items())]
message = b"\\0".join(map(os.fsencode, parts))
socket.send_fds(connection, [struct.pack("!II", len(message), len(sys.argv) - 1)], [0, 1, 2])
connection.sendall(message)
def forward(number, frame):
    try:
        connection.send(bytes([number]))
    except OSError:  # the program has ended
        pass
for number in {forwarded}:
    signal.signal(number, forward)
status, = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL) or struct.pack("!i", signal.SIGKILL))
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
"""


SERVERS: list[subprocess.Popen[bytes]] = []
"""Kept alive: a server ends at the end of its input."""


@cache
def warm_python() -> str:
    """Return the path of the executable. The first call in a process starts the server."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    address, client = folder / "socket", folder / "python"
    names = [int(number) for number in FORWARDED]
    client.write_text(CLIENT.format(python=sys.executable, address=str(address), forwarded=names))
    client.chmod(0o700)
    command = [sys.executable, __file__, str(address)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    SERVERS.append(server)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the server of warm interpreters did not start"
    return str(client)


# The server


def serve(address: str) -> None:
    """Fork a process for each connection until the standard input ends. Returns in the processes of programs only."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no status is needed
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("ready", flush=True)
        while listener in (ready := select.select([listener, sys.stdin], [], [])[0]) or not ready:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return run_for(connection)
            connection.close()
    shutil.rmtree(Path(address).parent, ignore_errors=True)
    os._exit(0)


def run_for(connection: socket.socket) -> None:
    """Run the program of a client in a process of its own; this process watches both."""
    head, streams, _, _ = socket.recv_fds(connection, HEAD.size, 3)
    length, count = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0)
    message = connection.recv(length, socket.MSG_WAITALL) if length else b""
    if not length or len(message) < length:  # the client has died
        os._exit(1)
    parts = [os.fsdecode(part) for part in message.split(b"\0")]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        connection.close()
        become(parts[:count], parts[count], dict(part.split("=", 1) for part in parts[count + 1 :]), streams)
        return
    for stream in streams:
        os.close(stream)
    watch(child, connection)


def watch(child: int, connection: socket.socket) -> NoReturn:
    """Forward signals to the program until it ends, then its status; kill it if its client is killed."""
    ended = os.pidfd_open(child)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while ended not in {key.fd for key, _ in selector.select()}:
            signals = connection.recv(64)
            for number in signals or bytes([signal.SIGKILL]):
                with suppress(ProcessLookupError):
                    os.kill(child, number)
            if not signals:
                selector.unregister(connection)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(STATUS.pack(status))
    os._exit(0)


# The process of a program


def become(words: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """Take over the client's environment and streams, as an interpreter that has just started with these words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number in FORWARDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    inherited = set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    base = [path for path in sys.path[1:] if path not in inherited]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *base]
    sys.orig_argv = [sys.executable, *words]
    buffered = not environment.get("PYTHONUNBUFFERED")
    filters = [each for each in environment.get("PYTHONWARNINGS", "").split(",") if each]
    while words and words[0].startswith("-") and words[0] not in ("-c", "-m", "-"):
        option = words.pop(0)
        if option in ("-W", "-X"):
            option += words.pop(0)
        if option.startswith("-W"):
            filters.append(option[2:])
        elif option == "-u":
            buffered = False
        elif not option.startswith("-X"):
            raise SystemExit(f"A warm interpreter does not take the option {option}.")
    sys.warnoptions[:] = filters
    warnings._processoptions(filters)  # type: ignore[attr-defined]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        binary: Any = open(number, "wb", -1 if buffered else 0, closefd=False)  # noqa: SIM115
        by_line, errors = number == 2 or os.isatty(number), "backslashreplace" if number == 2 else None
        file = io.TextIOWrapper(binary, errors=errors, line_buffering=by_line, write_through=not buffered)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    tempfile.tempdir = None
    random.seed()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (threads := environment.get("OMP_NUM_THREADS", "")).isdecimal():
        sys.modules["torch"].set_num_threads(int(threads))
    PROGRAM.extend(words)


PROGRAM: list[str] = []
"""The words of the program that this process became."""


def run_program() -> NoReturn:
    """Run the program as `__main__`. What it raises ends the process as it would end an interpreter."""
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = main
    how, *rest = PROGRAM
    try:
        if how == "-m":
            sys.path.insert(0, os.getcwd())
            sys.argv[:] = rest
            runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        elif how == "-c":
            sys.path.insert(0, "")
            sys.argv[:] = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main.__dict__)
        else:
            sys.path.insert(0, str(Path(how).resolve().parent))
            sys.argv[:] = PROGRAM
            main.__file__ = how
            exec(compile(Path(how).read_bytes(), how, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        end(error.code)
    except KeyboardInterrupt as error:
        report(error)
        finish()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        report(error)
        end(1)
    end(0)


def report(error: BaseException) -> None:
    """Print an error of the program without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    sys.stdout.flush()


def finish() -> None:
    """Wait for threads, call what is registered for the end, and flush the streams."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def end(code: object) -> NoReturn:
    """End as an interpreter does, but leave the memory to the system: to release it takes longer than to start.

    With WARM_END=interpreter, it is the interpreter that ends.
    """
    if os.environ.get("WARM_END") == "interpreter":
        raise SystemExit(code)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    finish()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
    run_program()
