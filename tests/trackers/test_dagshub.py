"""The adapter of dagshub: its MLflow half on a real server on loopback, its uploads on a stand-in of the repository.

The stand-in speaks the interface that the real library uses: the user, the repository, its branch, and its contents.
"""

from __future__ import annotations

import email
import email.policy
import http.server
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hexloop.ports.logger import Outcome
from tests.trackers.contract import FIRST, information
from tests.trackers.mlflow_server import mlflow_server
from tests.trackers.running import Answer, SentRun
from tests.trackers.test_mlflow import MLflowContract

USER = {"id": 1, "login": "me", "full_name": "", "username": "me"}
REPOSITORY = {
    "id": 1, "owner": USER, "name": "digits", "full_name": "me/digits", "description": "", "private": False,
    "fork": False, "empty": False, "mirror": False, "size": 0, "html_url": "", "clone_url": "", "stars_count": 0,
    "forks_count": 0, "watchers_count": 0, "open_issues_count": 0, "default_branch": "main", "created_at": "",
    "updated_at": "",
}  # fmt: skip
COMMIT = {"id": "0" * 40, "message": "", "url": "", "timestamp": ""}
REPLIES: dict[str, Mapping[str, Any]] = {
    "/api/v1/user": USER,
    "/api/v1/repos/me/digits": REPOSITORY,
    "/api/v1/repos/me/digits/branches/main": {"name": "main", "commit": COMMIT},
    "/api/v1/repos/me/digits/branches/trained": {"name": "trained", "commit": COMMIT},
}
TOKEN = "a-token-of-dagshub"


class Repository(http.server.ThreadingHTTPServer):
    """DagsHub with one repository. uploads: for each branch, the files below `artifacts`. drops: how many uploads it
    breaks off. MLflow's part is passed on to `mlflow`.
    """

    daemon_threads = True

    def __init__(self, mlflow: str) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.mlflow = mlflow
        self.uploads: dict[str, dict[str, bytes]] = {}
        self.drops = 0
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Requests(http.server.BaseHTTPRequestHandler):
    server: Repository

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/me/digits.mlflow"):
            return self.pass_on()
        if TOKEN not in self.headers.get("Authorization", ""):
            return self.reply({"message": "not logged in"}, HTTPStatus.UNAUTHORIZED)
        known = REPLIES.get(self.path)
        return self.reply(known or {}, HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        self.pass_on()

    def do_PATCH(self) -> None:
        self.pass_on()

    def do_PUT(self) -> None:
        if self.path.startswith("/me/digits.mlflow"):
            return self.pass_on()
        if self.server.drops:
            self.server.drops -= 1
            self.close_connection = True
            self.connection.close()
            return None
        prefix = "/api/v1/repos/me/digits/content/"
        assert self.path.startswith(prefix), self.path
        assert TOKEN in self.headers["Authorization"]
        branch, _, folder = self.path.removeprefix(prefix).partition("/")
        assert folder == "artifacts"
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + self.body(), policy=email.policy.default)
        for part in message.iter_parts():
            if name := part.get_filename():
                content = part.get_payload(decode=True)
                assert isinstance(content, bytes)
                self.server.uploads.setdefault(branch, {})[name] = content
        return self.reply({})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def pass_on(self) -> None:
        """Send the request to the server of MLflow, and its answer back."""
        address = self.server.mlflow + self.path.removeprefix("/me/digits.mlflow")
        kept = {name: self.headers[name] for name in ("Content-Type", "Authorization") if name in self.headers}
        request = urllib.request.Request(address, self.body() or None, kept, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.send(answer.status, answer.headers.get("Content-Type", ""), answer.read())
        except urllib.error.HTTPError as error:
            self.send(error.code, error.headers.get("Content-Type", ""), error.read())

    def reply(self, content: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send(status, "application/json", json.dumps(content).encode())

    def send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server of MLflow."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def mlflow_address(store: Path) -> Iterator[str]:
    with mlflow_server("dagshub", store) as address:
        yield address


@pytest.fixture
def repository(mlflow_address: str) -> Iterator[Repository]:
    server = Repository(mlflow_address)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.matrix
class TestDagsHub(MLflowContract):
    adapter = "hexloop.adapters.logger.dagshub:DagsHub"
    package = module = extra = environment = "dagshub"
    uploading: ClassVar[dict[str, str]] = {"HF_DAGSHUB_LOG_ARTIFACTS": "1"}

    @pytest.fixture(autouse=True)
    def _address(self, repository: Repository, store: Path) -> None:
        self.repository, self.store = repository, store

    def variables(self, folder: Path) -> dict[str, str]:
        return {
            "MLFLOW_TRACKING_URI": f"{self.repository.address}/me/digits.mlflow",
            "MLFLOW_EXPERIMENT_NAME": folder.name,
            "DAGSHUB_CLIENT_HOST": self.repository.address,
            "DAGSHUB_USER_TOKEN": TOKEN,
        }

    def images(self, folder: Path) -> list[str]:
        return super().images(self.store)

    def without_login(self) -> dict[str, str]:
        return {"DAGSHUB_USER_TOKEN": "", **self.uploading}

    def login_hints(self) -> tuple[str, ...]:
        return ("DAGSHUB_USER_TOKEN",)

    def uploaded(self, folder: Path, outcome: Outcome, **variables: str) -> Answer:
        out = folder / "out"
        (out / "checkpoint-20").mkdir(parents=True)
        (out / "model.safetensors").write_bytes(b"weights")
        (out / "checkpoint-20" / "state.json").write_bytes(b"{}")
        run = SentRun(information(folder=str(out)), FIRST, outcome=outcome)
        return self.track(folder, run, variables={**self.uploading, **variables})

    @pytest.mark.parametrize("branch", ["main", "trained"])
    def test_the_folder_of_the_run_is_uploaded(self, branch: str, tmp_path: Path) -> None:
        """At its end, once, to the folder `artifacts` of the branch that BRANCH names."""
        answer = self.uploaded(tmp_path, Outcome("finished"), BRANCH=branch)
        assert answer.error is None, answer.output
        files = {"model.safetensors": b"weights", "checkpoint-20/state.json": b"{}"}
        assert self.repository.uploads == {branch: files}
        [one] = self.read(tmp_path)
        assert one.status == "FINISHED"

    def test_a_failed_run_is_not_uploaded(self, tmp_path: Path) -> None:
        """Its status is that of the run, and nothing is uploaded; nor without HF_DAGSHUB_LOG_ARTIFACTS."""
        assert self.uploaded(tmp_path, Outcome("failed", "ValueError: no")).error is None
        self.track(tmp_path, SentRun(information(folder=str(tmp_path / "out"))))
        assert self.repository.uploads == {}
        assert [one.status for one in self.read(tmp_path)] == ["FAILED", "FINISHED"]

    def test_a_connection_that_breaks_can_be_tried_again(self, tmp_path: Path) -> None:
        """The error is a ConnectionError, the run has its status, and finishing again uploads, once."""
        self.repository.drops = 1
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "model.safetensors").write_bytes(b"weights")
        program = """
from hexloop.adapters.logger.dagshub import DagsHub
from hexloop.ports.logger import RunInformation
logger = DagsHub()
logger.start(RunInformation("digits", folder="out"))
for attempt in range(3):
    try:
        logger.finish()
    except ConnectionError:
        print("failed", attempt)
"""
        assert "failed 0\n" in self.run(tmp_path, program, **self.uploading)
        assert self.repository.uploads == {"main": {"model.safetensors": b"weights"}}
        [one] = self.read(tmp_path)
        assert one.status == "FINISHED"

    @pytest.mark.parametrize("address", ["", "sqlite:///store.db"])
    def test_an_address_without_a_repository(self, address: str, tmp_path: Path) -> None:
        """The error names the variable and what it looks like."""
        answer = self.track(tmp_path, SentRun(information()), variables={"MLFLOW_TRACKING_URI": address})
        assert answer.error is not None
        assert "ConfigurationError" in answer.error["types"]
        assert "MLFLOW_TRACKING_URI=https://dagshub.com/OWNER/NAME.mlflow" in answer.error["text"]
