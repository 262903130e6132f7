"""A model hub on loopback that serves the hub's read requests from memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.engines.serving import serving

COMMIT = {"id": "c" * 40, "title": "add checkpoints", "date": "2026-01-02T03:04:05.000Z"}


class HubServer(ThreadingHTTPServer):
    """Serves one model, in one version.

    files: content by path. requests: the requests received.
    """

    daemon_threads = True

    def __init__(self, model: str) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.model = model
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def entry(self, path: str) -> dict[str, Any] | None:
        """Return the hub's entry for a file or a folder."""
        if path in self.files:
            data = self.files[path]
            oid = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            return {"type": "file", "path": path, "size": len(data), "oid": oid, "lastCommit": COMMIT}
        if any(name.startswith(f"{path}/") for name in self.files):
            return {"type": "directory", "path": path, "size": 0, "oid": "d" * 40, "lastCommit": COMMIT}
        return None

    def below(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        """Return the hub's entries for all files in a folder."""
        above = f"{folder}/" if folder else ""
        paths: set[str] = set()
        for name in self.files:
            if name.startswith(above):
                parts = name.removeprefix(above).split("/")
                depths = range(1, len(parts) + 1) if recursive else [1]
                paths |= {above + "/".join(parts[:depth]) for depth in depths}
        return [entry for path in sorted(paths) if (entry := self.entry(path))]


class HubHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HubServer

    def do_GET(self) -> None:
        path = self._path()
        api, model = f"/api/models/{self.server.model}", f"/{self.server.model}"
        if path in (api, f"{api}/revision/main"):
            self._answer(200, json.dumps({"id": self.server.model, "sha": COMMIT["id"], "siblings": []}).encode())
        elif path.startswith(f"{api}/tree/main"):
            self._tree(path.removeprefix(f"{api}/tree/main").strip("/"))
        elif path.startswith(f"{model}/resolve/main/"):
            self._file(path.removeprefix(f"{model}/resolve/main/"))
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        path = self._path()
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if path == f"/api/models/{self.server.model}/paths-info/main":
            asked = json.loads(sent)["paths"] if sent.startswith("{") else parse_qs(sent)["paths"]
            self._answer(200, json.dumps([entry for name in asked if (entry := self.server.entry(name))]).encode())
        else:
            self._answer(403, b"this model is read by everybody and written by its owner")

    def _path(self) -> str:
        self.server.requests.append(f"{self.command} {self.path}")
        return unquote(urlsplit(self.path).path)

    def _tree(self, folder: str) -> None:
        recursive = "true" in parse_qs(urlsplit(self.path).query.lower()).get("recursive", [])
        found = self.server.below(folder, recursive)
        if found or not folder:
            self._answer(200, json.dumps(found).encode())
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif wanted := self.headers.get("Range"):
            first, last = (int(bound) for bound in wanted.removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            where = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
            self._answer(206, part, {"Content-Range": where})
        else:
            self._answer(200, data)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """No-op."""


@contextmanager
def hub_of(model: str) -> Iterator[HubServer]:
    """Return a hub with one empty model."""
    with serving(HubServer(model)) as server:
        yield server
