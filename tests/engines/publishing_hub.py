"""A model hub on loopback that models can be published on, in memory, and that fails as planned."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from attrs import define, field

from tests.engines.serving import serving

OWNER = "someone"
"""The owner of the token that the hub expects, and of models that are named without one."""


@define
class PublishedCommit:
    """One version of a model: its files by path, after the commit."""

    oid: str
    message: str
    files: dict[str, bytes]
    parent: str | None
    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


@define
class Repository:
    """A model: its commits by branch, the newest last."""

    private: bool | None
    branches: dict[str, list[PublishedCommit]] = field(factory=lambda: {"main": []})

    def __attrs_post_init__(self) -> None:
        self.branches["main"].append(PublishedCommit("0" * 40, "initial commit", {}, None))


@define
class HubFault:
    """What the hub does instead of answering a request.

    matches: a part of the method and path. status: that of the answer; None to close the connection without one, in
    the middle of what is sent. times: for how many requests. after: whether the request is carried out
    first, so that only its answer is lost.
    """

    matches: str
    status: int | None = 500
    times: int = 1
    headers: dict[str, str] = field(factory=dict)
    after: bool = False


class PublishingHub(ThreadingHTTPServer):
    """Keeps models, as the Hugging Face Hub does.

    faults: applied in order. delay: seconds before each answer. rate: bytes a second at which it reads what is sent;
    None for no limit. is_down: whether every connection is closed.
    requests: those received, as method and path. tokens: the Authorization headers of those.
    """

    daemon_threads = True
    block_on_close = False  # a connection that a test keeps open

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), PublishingHandler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.faults: list[HubFault] = []
        self.delay, self.is_down = 0.0, False
        self.rate: float | None = None
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.lock = threading.RLock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """No-op: a client went away."""

    def commits(self, name: str, branch: str = "main") -> list[PublishedCommit]:
        """Return the commits of a branch, without the first, empty one."""
        with self.lock:
            found = self.repositories[name].branches[branch] if name in self.repositories else []
            return [commit for commit in found if commit.oid != "0" * 40]

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        """Return the newest files of a model."""
        commits = self.commits(name, branch)
        return commits[-1].files if commits else {}

    def find(self, name: str, revision: str) -> PublishedCommit | None:
        """Return a commit by its hash or branch."""
        for branch, commits in self.repositories[name].branches.items():
            for commit in commits:
                if revision == commit.oid:
                    return commit
            if revision == branch:
                return commits[-1]
        return None


class PublishingHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: PublishingHub

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def _handle(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        time.sleep(hub.delay)
        with hub.lock:
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization"))
            fault = next((each for each in hub.faults if each.matches in hub.requests[-1] and each.times > 0), None)
            if fault is not None:
                fault.times -= 1
        if hub.is_down or (fault is not None and fault.status is None and not fault.after):
            self.rfile.read(0 if hub.is_down else int(self.headers.get("Content-Length", 0)) // 2)
            self.close_connection = True
            return
        body = self._body()
        if body is None:  # the client was killed while it sent it
            self.close_connection = True
            return
        if fault is not None and not fault.after:
            self._answer(int(fault.status or 0), {"error": "planned"}, fault.headers)
            return
        with hub.lock:
            answer = self._respond(urlsplit(self.path).path, body)
        if fault is not None:
            self.close_connection = True
            return
        self._answer(*answer)

    def _body(self) -> bytes | None:
        """Return the body of the request; None if it ended early."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            chunks = []
            while size := int(self.rfile.readline().strip() or b"-1", 16):
                chunks.append(self.rfile.read(max(size, 0)))
                if len(chunks[-1]) != size:
                    return None
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        left, parts = int(self.headers.get("Content-Length", 0)), list[bytes]()
        while left > 0 and (part := self.rfile.read(left if self.server.rate is None else min(left, 100))):
            parts.append(part)
            left -= len(part)
            if self.server.rate is not None:
                time.sleep(len(part) / self.server.rate)
        return None if left else b"".join(parts)

    def _respond(self, path: str, body: bytes) -> tuple[Any, ...]:
        hub = self.server
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if path.startswith("/storage/"):
            digest = path.rpartition("/")[2]
            if hashlib.sha256(body).hexdigest() != digest:
                return 400, {"error": "The content does not match its digest."}
            hub.objects[digest] = body
            return 200, {}
        name, action = self._model(path)
        if name not in hub.repositories:
            return 404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"}
        if action.startswith("branch/"):
            branches = hub.repositories[name].branches
            branches.setdefault(unquote(action.partition("/")[2]), list(branches["main"]))
            return 200, {}
        if action == "info/lfs/objects/batch":
            return self._batch(json.loads(body))
        kind, _, rest = action.partition("/")
        revision, below = (unquote(part) for part in rest.partition("/")[::2])
        commit = hub.find(name, revision or "main")
        if commit is None:
            return 404, {"error": "none"}, {"X-Error-Code": "RevisionNotFound"}
        answers: dict[str, Callable[[], tuple[Any, ...]]] = {
            "preupload": lambda: self._modes(commit, json.loads(body)),
            "commit": lambda: self._commit(name, revision, body),
            "tree": lambda: (200, [_entry(file, data) for file, data in commit.files.items()]),
            "resolve": lambda: self._file(commit, below),
        }
        return answers.get(kind, lambda: (200, {"id": name, "sha": commit.oid, "siblings": _siblings(commit)}))()

    @staticmethod
    def _model(path: str) -> tuple[str, str]:
        """Return the name of a model in a path, and what follows it."""
        owner, name, *rest = path.removeprefix("/api/models/").strip("/").split("/")
        return f"{owner}/{name.removesuffix('.git')}", "/".join(rest)

    def _create(self, asked: dict[str, Any]) -> tuple[Any, ...]:
        name = f"{asked.get('organization') or OWNER}/{asked['name']}"
        exists = name in self.server.repositories
        if not exists:
            visibility = asked.get("visibility")
            self.server.repositories[name] = Repository(None if visibility is None else visibility == "private")
        return 409 if exists else 200, {"url": f"{self.server.address}/{name}", "name": name, "id": name}

    def _modes(self, commit: PublishedCommit, asked: dict[str, Any]) -> tuple[Any, ...]:
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith((".safetensors", ".bin")) else "regular",
                "shouldIgnore": False,
                "oid": _oid(each["path"], commit.files[each["path"]]) if each["path"] in commit.files else None,
            }
            for each in asked["files"]
        ]
        return 200, {"files": files}

    def _batch(self, asked: dict[str, Any]) -> tuple[Any, ...]:
        objects = [
            {"oid": each["oid"], "size": each["size"]}
            if each["oid"] in self.server.objects
            else {**each, "actions": {"upload": {"href": f"{self.server.address}/storage/{each['oid']}"}}}
            for each in asked["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def _commit(self, name: str, branch: str, body: bytes) -> tuple[Any, ...]:
        hub = self.server
        header, *operations = [json.loads(line) for line in body.splitlines() if line]
        commits = hub.repositories[name].branches[branch]
        if header["value"].get("parentCommit") not in (None, commits[-1].oid):
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        files, written, deleted = dict(commits[-1].files), list[str](), list[str]()
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                written.append(value["path"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = hub.objects[value["oid"]]
                written.append(value["path"])
            else:
                del files[value["path"]]
                deleted.append(value["path"])
        oid = hashlib.sha1(f"{name}{branch}{len(commits)}{time.time_ns()}".encode()).hexdigest()
        made = PublishedCommit(
            oid, header["value"]["summary"], files, commits[-1].oid, tuple(written), tuple(sorted(deleted))
        )
        answer = {"success": True, "commitOid": oid, "commitUrl": f"{hub.address}/{name}/commit/{oid}"}
        if "create_pr=1" in urlsplit(self.path).query:
            number = len(hub.repositories[name].branches)
            hub.repositories[name].branches[f"refs/pr/{number}"] = [*commits, made]
            return 200, {**answer, "pullRequestUrl": f"{hub.address}/{name}/discussions/{number}"}
        commits.append(made)
        return 200, answer

    def _file(self, commit: PublishedCommit, path: str) -> tuple[Any, ...]:
        if path not in commit.files:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        data = commit.files[path]
        wanted = parse_qs(self.headers.get("Range", "").replace("bytes=", "bytes=")).get("bytes", ["0-"])[0]
        start = int(wanted.split("-")[0])
        etag = f'"{_oid(path, data)}"'
        return 206 if start else 200, data[start:], {"ETag": etag, "X-Repo-Commit": commit.oid}

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(status)
        sent = {"Content-Length": str(len(data)), "Content-Type": "application/json", **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """No-op."""


def _oid(path: str, data: bytes) -> str:
    """Return the hash by which the hub's client compares a file."""
    if path.endswith((".safetensors", ".bin")):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(path, data)}


def _siblings(commit: PublishedCommit) -> list[dict[str, str]]:
    return [{"rfilename": path} for path in commit.files]


@contextmanager
def publishing_hub(port: int = 0) -> Iterator[PublishingHub]:
    """Return a hub without models."""
    with serving(PublishingHub(port)) as server:
        yield server
