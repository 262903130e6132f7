"""A real S3 server on loopback, in a process of its own, and a proxy in front of it that fails by plan."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.engines.serving import serving

KEY, SECRET = "loopback-key", "loopback-secret-9f8e7d"


@contextmanager
def object_store() -> Iterator[str]:
    """Start an empty server, and return its address."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            address = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield address
        finally:
            process.kill()


def options_for(address: str, **client: Any) -> dict[str, Any]:
    """Return the options of s3fs for a server, with a short timeout."""
    patience = {"connect_timeout": 2, "read_timeout": 2, **client}
    return {"key": KEY, "secret": SECRET, "endpoint_url": address, "config_kwargs": patience}


def new_bucket(address: str) -> str:
    """Create a bucket for the test and return its name."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    host = address.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    authorization = f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"
    connection.request("PUT", f"/{name}", headers={"Authorization": authorization})
    assert connection.getresponse().status == 200
    connection.close()
    return name


Misbehaviour = Callable[["FlakyHandler"], bool]
"""Simulates a failure; returns whether it has handled the request."""


def drop(handler: FlakyHandler) -> bool:
    """Close the connection without reading the request."""
    handler.close_connection = True
    return True


def drop_the_answer(handler: FlakyHandler) -> bool:
    """Forward the request, and close the connection without a response."""
    handler.forward()
    return drop(handler)


def fail(status: int) -> Misbehaviour:
    """Respond with a server error."""

    def answer(handler: FlakyHandler) -> bool:
        handler.read_body()
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    return answer


def delay(seconds: float) -> Misbehaviour:
    """Respond late."""

    def answer(_: FlakyHandler) -> bool:
        time.sleep(seconds)
        return False

    return answer


def cut_the_upload(handler: FlakyHandler) -> bool:
    """Read half of the upload, and close the connection."""
    handler.rfile.read(int(handler.headers.get("Content-Length", 0)) // 2)
    return drop(handler)


def cut_the_download(handler: FlakyHandler) -> bool:
    """Send half of the response, and close the connection."""
    handler.answer(*handler.forward(), share=0.5)
    return drop(handler)


class FlakyServer(ThreadingHTTPServer):
    """Forwards every request to another server, unless `plan` returns a failure.

    plan: called with method and path; returns the failure, or None. requests: the requests received.
    """

    daemon_threads = True

    def __init__(self, behind: str, plan: Callable[[str, str], Misbehaviour | None]) -> None:
        super().__init__(("127.0.0.1", 0), FlakyHandler)
        self.behind, self.plan = behind.removeprefix("http://"), plan
        self.requests: list[str] = []
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Ignore clients that close the connection."""


class FlakyHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: FlakyServer

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def serve(self) -> None:
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path}")
            misbehaviour = self.server.plan(self.command, self.path)
        if misbehaviour is None or not misbehaviour(self):
            self.answer(*self.forward())

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815 - names of the standard library

    def read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def forward(self) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.behind, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION}
        connection.request(self.command, self.path, self.read_body(), headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, response.getheaders(), body

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, share: float = 1.0) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[: int(len(body) * share)])

    def log_message(self, *_: object) -> None:
        """No-op."""


_OF_A_CONNECTION = frozenset({"connection", "content-length", "transfer-encoding", "expect", "keep-alive"})


@contextmanager
def flaky(behind: str, plan: Callable[[str, str], Misbehaviour | None]) -> Iterator[FlakyServer]:
    """Start a flaky proxy in front of another server."""
    with serving(FlakyServer(behind, plan)) as server:
        yield server
