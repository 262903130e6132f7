"""A real server of MLflow on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trackers.running import python_of, variables_for

LONGEST_START = 180
"""Seconds; importing the server takes long on a busy machine."""


@contextmanager
def mlflow_server(environment: str, folder: Path) -> Iterator[str]:
    """Run a server with a database and artifacts in `folder`, and yield its address."""
    address = f"http://127.0.0.1:{_free_port()}"
    host, _, port = address.removeprefix("http://").partition(":")
    words = ["-m", "mlflow", "server", "--host", host, "--port", port, "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder}/store.db"]
    words += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [python_of(environment), *words], cwd=folder, env=variables_for(folder, {}), stdout=log, stderr=log
        )
        try:
            _wait_for(f"{address}/health", process, folder / "log.txt")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LONGEST_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(log.read_text(errors="replace")[-3000:])
