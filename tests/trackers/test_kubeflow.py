"""Kubeflow's endpoint for the status of a job, as a real server on loopback, plain and with TLS."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hexloop import KubeflowCallback
from hexloop.adapters.clock import ManualClock
from hexloop.adapters.logger.kubeflow import INTERVAL, TOKEN_SECONDS, Kubeflow, is_offered
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Outcome, Record, RunInformation
from tests.end_to_end.small.trainers import small_trainer
from tests.trackers.running import PROGRAMS

RUN = RunInformation("tiny", {"seed": 7}, total_steps=40)
TOKEN = "kubernetes-token-0123456789"


class Controller(ThreadingHTTPServer):
    """A server that keeps what it receives, and answers with the codes of `answers`, then with 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.updates: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.answers: list[int] = []

    @property
    def progress(self) -> list[int | None]:
        return [each.get("progressPercentage") for each in self.updates]

    @property
    def metrics(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.updates[-1]["metrics"]}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that leaves, as one does that does not trust this server."""


class _Handler(BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.append(self.headers["Authorization"])
        code = self.server.answers.pop(0) if self.server.answers else 200
        if code == 200:
            self.server.updates.append(json.loads(content)["trainerStatus"])
        self.send_response(code)
        if code == 302:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Keep the token of a request that was redirected."""
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def controller() -> Iterator[Controller]:
    yield from served(Controller())


def served(server: Controller) -> Iterator[Controller]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def job(controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The variables of a pod; the file of the token."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://127.0.0.1:{controller.server_port}/status")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(token))
    return token


def record(step: int, **values: float | str | None) -> Record:
    return Record(step, step / 40, values)


def test_a_run_is_reported(controller: Controller, job: Path) -> None:
    """Start, values as texts with their newest value, time left, and the end are posted with the token of the file."""
    clock = ManualClock()
    tracker = Kubeflow(monotonic=clock.monotonic)
    assert tracker.start(RUN) is None
    clock.advance(10)
    tracker.write(record(10, loss=0.75, learning_rate=0.1, note="a text", nothing=None))
    clock.advance(20)
    tracker.write(record(30, loss=0.25))
    tracker.write(record(40, eval_loss=0.5))
    tracker.finish()
    assert controller.progress == [0, 25, 75, 100]
    assert controller.tokens == [f"Bearer {TOKEN}"] * 4
    assert controller.updates[0]["metrics"] == [{"name": "total_steps", "value": "40"}]
    assert [each.get("estimatedRemainingSeconds") for each in controller.updates] == [None, 30, 10, 0]
    assert {each["name"]: each["value"] for each in controller.updates[1]["metrics"]} == {
        "total_steps": "40",
        "loss": "0.75",
        "learning_rate": "0.1",
        "current_step": "10",
        "current_epoch": "0.25",
    }
    assert (controller.metrics["loss"], controller.metrics["eval_loss"]) == ("0.25", "0.5")
    assert controller.metrics["current_step"] == "40"
    times = [datetime.fromisoformat(each["lastUpdatedTime"]) for each in controller.updates]
    assert times == sorted(times)
    assert times[0].utcoffset() == timedelta(0)


def test_updates_are_five_seconds_apart(controller: Controller, job: Path) -> None:
    """Of 100 records in 50 seconds, one in 5 seconds is posted; the first and the last always are."""
    clock = ManualClock()
    tracker = Kubeflow(monotonic=clock.monotonic)
    tracker.start(RunInformation("tiny", total_steps=100))
    for step in range(1, 101):
        clock.advance(0.5)
        tracker.write(record(step, loss=float(step)))
    tracker.finish()
    assert INTERVAL == 5.0
    assert controller.progress == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 99, 100]
    assert controller.metrics["loss"] == "100.0"


@pytest.mark.parametrize("kind", ["failed", "stopped", "preempted"])
def test_a_run_that_does_not_finish_stays_below_100(kind: Any, controller: Controller, job: Path) -> None:
    """Its last update has the step that it reached, and how it ended, without secrets."""
    tracker = Kubeflow()
    tracker.start(RUN)
    tracker.write(record(40, loss=0.5))
    tracker.finish(Outcome(kind, "ValueError: api_key=abcdefgh123"))
    assert controller.progress == [0, 99]
    assert controller.metrics["hexloop/outcome"] == f"{kind}: ValueError: api_key=***"
    assert controller.metrics["loss"] == "0.5"


def test_a_resumed_run_goes_on_where_it_was(controller: Controller, job: Path) -> None:
    """The progress never returns to 0, and the time left is by the pace of the new process."""
    clock = ManualClock()
    tracker = Kubeflow(monotonic=clock.monotonic)
    tracker.start(RunInformation("tiny", total_steps=40, step=20))
    clock.advance(5)
    tracker.write(record(30, loss=0.5))
    tracker.finish()
    assert controller.progress == [50, 75, 100]
    assert controller.updates[1]["estimatedRemainingSeconds"] == 5


def test_a_run_of_unknown_length_has_no_progress(controller: Controller, job: Path) -> None:
    """Only its end is known."""
    tracker = Kubeflow()
    tracker.start(RunInformation("tiny"))
    tracker.finish()
    assert controller.progress == [None, 100]


def test_the_token_is_read_again_after_300_seconds_or_when_it_is_refused(controller: Controller, job: Path) -> None:
    """Kubernetes replaces the file of the token while the run goes on."""
    clock = ManualClock()
    tracker = Kubeflow(monotonic=clock.monotonic)
    tracker.start(RUN)
    job.write_text("the-second-token")
    clock.advance(TOKEN_SECONDS - 1)
    tracker.write(record(10))
    clock.advance(1)
    clock.advance(INTERVAL)
    tracker.write(record(11))
    job.write_text("the-third-token")
    controller.answers = [401]
    clock.advance(INTERVAL)
    tracker.write(record(12))
    clock.advance(INTERVAL)
    tracker.write(record(13))
    assert [each.removeprefix("Bearer ") for each in controller.tokens] == [
        *(TOKEN, TOKEN, "the-second-token", "the-second-token", "the-third-token")
    ]


def test_failures_are_warned_of_once(controller: Controller, job: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Later updates are tried, and carry what was lost; the last one can be tried again."""
    clock = ManualClock()
    controller.answers = [500, 503, 200, 500, 500]
    tracker = Kubeflow(monotonic=clock.monotonic)
    with caplog.at_level(logging.WARNING, "hexloop"):
        tracker.start(RUN)
        clock.advance(INTERVAL)
        tracker.write(record(10, loss=0.5))
        clock.advance(INTERVAL)
        tracker.write(record(20, accuracy=0.25))
        for _ in range(2):
            with pytest.raises(ConnectionError, match="answered 500"):
                tracker.finish()
        tracker.finish()
    assert controller.progress == [50, 100]
    assert (controller.metrics["loss"], controller.metrics["accuracy"]) == ("0.5", "0.25")
    [message] = caplog.messages
    assert "answered 500" in message


def test_the_last_update_that_cannot_be_delivered_is_an_error(controller: Controller, job: Path) -> None:
    """It says what the controller answered, and not the token."""
    tracker = Kubeflow()
    tracker.start(RUN)
    controller.answers = [403]
    with pytest.raises(PermissionError, match="answered 403") as caught:
        tracker.finish()
    assert TOKEN not in str(caught.value)
    assert len(controller.tokens) == 2


def test_the_token_follows_no_redirect(controller: Controller, job: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A redirect is a failure, so that the token stays with the address that Kubeflow named."""
    controller.answers = [302]
    Kubeflow().start(RUN)
    assert len(controller.tokens) == 1
    assert "answered 302" in caplog.text


@pytest.mark.parametrize("content", [None, "", "two\nlines", "not äscii"])
def test_without_a_token_nothing_is_posted(
    content: str | None, controller: Controller, job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing, empty or broken file is named."""
    job.unlink() if content is None else job.write_text(content, encoding="utf-8")
    Kubeflow().start(RUN)
    assert controller.tokens == []
    assert str(job) in caplog.text


@pytest.mark.matrix
def test_a_controller_that_is_silent_holds_a_call_for_5_seconds(
    job: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is accepted and never answered ends by itself."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        Kubeflow().start(RUN)
    assert "timed out" in caplog.text


def test_a_trainer_reports_its_run(controller: Controller, job: Path, tmp_path: Path) -> None:
    """`report_to="kubeflow"` posts from the start of a run to its end, with the losses."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / "training.py", "kubeflow", "finish"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert controller.progress[0] == 0
    assert controller.progress[-1] == 100
    assert float(controller.metrics["eval_loss"]) > 0
    assert (controller.metrics["current_step"], controller.metrics["total_steps"]) == ("8", "8")


def test_progress_is_reported_between_logs(
    controller: Controller, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds, here after none, and with the values of the last log."""
    monkeypatch.setattr("hexloop.adapters.logger.kubeflow.INTERVAL", 0.0)
    monkeypatch.setattr(KubeflowCallback, "interval", 0.0)
    small_trainer(tmp_path / "run", parts={"loggers": None}, max_steps=8, logging_steps=4).train()
    assert set(controller.progress) >= {0, 12, 25, 37, 50, 62, 75, 87, 99, 100}
    assert controller.metrics["current_step"] == "8"


def certificate(folder: Path) -> Path:
    """Write a certificate of 127.0.0.1, which is its own authority, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


class TestTls:
    @pytest.fixture
    def controller(self, tmp_path: Path) -> Iterator[Controller]:
        server = Controller()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(tmp_path))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield from served(server)

    @pytest.fixture(autouse=True)
    def address(self, controller: Controller, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"https://127.0.0.1:{controller.server_port}/")

    def test_the_named_authority_is_trusted(
        self, controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The certificate of the server is checked against the file of the cluster."""
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", str(tmp_path / "certificate.pem"))
        tracker = Kubeflow()
        tracker.start(RUN)
        tracker.finish()
        assert controller.progress == [0, 100]

    @pytest.mark.parametrize("authority", [None, "missing.pem"])
    def test_an_unknown_server_gets_no_token(
        self, authority: str | None, controller: Controller, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        """Without the file, or if it cannot be read, the server is not trusted."""
        if authority is not None:
            monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", authority)
        Kubeflow().start(RUN)
        assert controller.tokens == []
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
        assert authority is None or "missing.pem" in caplog.text


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({}, "KUBEFLOW_TRAINER_SERVER_URL"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "ftp://x"}, "ftp://x"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "http://x", "DISABLE_KUBEFLOW_INTEGRATION": "True"}, "switched off"),
    ],
)
def test_outside_of_a_job_it_is_refused(
    variables: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable."""
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=problem):
        Kubeflow()
    assert is_offered() == ("ftp://x" in variables.values())
