"""Progress and metrics for the controller of a Kubeflow TrainJob, which shows them as the job's status."""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from hexloop.adapters.logger.tracker import numbers_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.redaction import redact, remember_secrets
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation

URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN_FILE = "KUBEFLOW_TRAINER_SERVER_TOKEN"
AUTHORITY_FILE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
SWITCHED_OFF = "DISABLE_KUBEFLOW_INTEGRATION"

INTERVAL = 5.0
"""Seconds between two updates, except the first and the last, as in transformers 5."""

TOKEN_SECONDS = 300.0
"""For how long a token is used before its file is read again; Kubernetes replaces it from time to time."""

TIMEOUT = 5.0
"""Seconds for which an answer is awaited."""

LONGEST_VALUE = 256
"""Characters of a value that is a text."""

_LOGGER = logging.getLogger("hexloop.loggers")


def is_offered(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether the process runs in a TrainJob whose controller takes updates."""
    return URL in variables and variables.get(SWITCHED_OFF, "").upper() != "TRUE"


class Kubeflow:
    """Logger adapter that posts the progress of a run, and the newest value of each number, to the job's controller.

    The controller says in environment variables where it listens. Raises ConfigurationError if it does not, so outside
    of a TrainJob, or if the address is none. An update that fails is replaced by the next one and warned of once; only
    the last one raises OSError, so that the run tries it again. `monotonic` returns seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not is_offered():
            raise ConfigurationError(_why_not())
        self._url = os.environ[URL]
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise ConfigurationError(f"{URL}={self._url!r} is not an address of HTTP; it starts with https://.")
        self._monotonic = monotonic
        self._token = _TokenFile(monotonic)
        self._client: OpenerDirector | None = None
        self._total: int | None = None
        self._forget()

    def start(self, run: RunInformation) -> str | None:
        """Post where the run is; it has no identity, because a TrainJob is one run."""
        self._forget()
        self._total = run.total_steps
        self._began_at, self._began = run.step, self._monotonic()
        if run.total_steps:
            self._metrics["total_steps"] = run.total_steps
        self._step = run.step
        self._client = self._client or _client()
        self._attempt()
        return None

    def write(self, record: Record) -> None:
        """Keep the newest values, and post them unless an update was posted a moment ago."""
        self._step = max(self._step, record.step)
        self._metrics |= numbers_of(record.values)
        self._metrics |= {"current_step": self._step, "current_epoch": round(record.epoch, 2)}
        if self._monotonic() - self._last >= INTERVAL:
            self._attempt()

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Post the last values, with 100 % if the run finished, and otherwise how it ended.

        Raises OSError if the controller does not take them; it may be called again then.
        """
        if self._client is None:
            return
        finished = outcome.kind == "finished"
        if not finished:
            problem = f"{outcome.kind}: {redact(outcome.problem)}" if outcome.problem else outcome.kind
            self._metrics["hexloop/outcome"] = problem[:LONGEST_VALUE]
        progress, remaining = (100, 0) if finished else (self._progress(), self._remaining())
        self._post(self._client, progress, remaining)
        self._client = None

    def _forget(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._total = None
        self._step = self._began_at = 0
        self._began = self._last = float("-inf")
        self._warned = False

    def _progress(self) -> int | None:
        """Return the percentage of steps done, at most 99 because the run has not ended."""
        return min(99, 100 * self._step // self._total) if self._total else None

    def _remaining(self) -> int | None:
        """Return the seconds that the rest takes at the pace of this process."""
        done = self._step - self._began_at
        if not self._total or done <= 0:
            return None
        return max(0, int((self._monotonic() - self._began) / done * (self._total - self._step)))

    def _attempt(self) -> None:
        """Post an update; the next one replaces it if it fails."""
        try:
            if self._client is not None:
                self._post(self._client, self._progress(), self._remaining())
        except OSError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            _LOGGER.log(level, "Kubeflow did not take an update, and later ones are tried: %s", redact(str(error)))

    def _post(self, client: OpenerDirector, progress: int | None, remaining: int | None) -> None:
        """Post an update. Raises OSError if the controller does not take it."""
        self._last = self._monotonic()
        status: dict[str, object] = {"lastUpdatedTime": datetime.now(UTC).isoformat()}
        if progress is not None:
            status["progressPercentage"] = progress
        if remaining is not None:
            status["estimatedRemainingSeconds"] = remaining
        if self._metrics:
            status["metrics"] = [{"name": name, "value": str(value)} for name, value in self._metrics.items()]
        headers = {"Authorization": f"Bearer {self._token.read()}", "Content-Type": "application/json"}
        content = json.dumps({"trainerStatus": status}).encode()
        try:
            client.open(Request(self._url, content, headers, method="POST"), timeout=TIMEOUT).close()
        except HTTPError as error:
            if error.code == 401:
                self._token.forget()
            error.close()
            kind = PermissionError if error.code in (401, 403) else ConnectionError  # trying again helps the latter
            raise kind(f"{self._url} answered {error.code} {error.reason}.") from None
        except HTTPException as error:
            raise ConnectionError(f"{self._url} did not answer as HTTP does: {error!r}.") from None


class _TokenFile:
    """The token of the job's account, read from its file again after a while."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._token, self._read = "", 0.0

    def read(self) -> str:
        """Return the token. Raises OSError if there is none."""
        if not self._token or self._monotonic() - self._read >= TOKEN_SECONDS:
            path = os.environ.get(TOKEN_FILE)
            if not path:
                raise FileNotFoundError(f"{TOKEN_FILE} is not set; it names the file with the token of the job.")
            with open(path, encoding="utf-8", errors="replace") as file:
                self._token, self._read = file.read().strip(), self._monotonic()
            if not self._token or not self._token.isprintable() or not self._token.isascii():
                self._token = ""
                raise PermissionError(f"the file {path!r}, which {TOKEN_FILE} names, has no token.")
            remember_secrets([self._token])
        return self._token

    def forget(self) -> None:
        """Read the file the next time."""
        self._token = ""


class _NoRedirects(HTTPRedirectHandler):
    """Refuses to send the token elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request, so that a redirect is an error."""


def _client() -> OpenerDirector:
    """Return a client that trusts the authority of the cluster, if one is named."""
    authority = os.environ.get(AUTHORITY_FILE)
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        _LOGGER.warning("%s=%r cannot be used, and the system's own are trusted: %s", AUTHORITY_FILE, authority, error)
        context = ssl.create_default_context()
    return build_opener(HTTPSHandler(context=context), _NoRedirects())


def _why_not() -> str:
    if URL in os.environ:
        return (
            f"Logging to kubeflow is switched off by {SWITCHED_OFF}={os.environ[SWITCHED_OFF]!r}; unset it, or leave "
            "'kubeflow' out of report_to."
        )
    return (
        f"Logging to kubeflow requires the environment variable {URL}, which Kubeflow sets in the pods of a TrainJob "
        "with the feature TrainJobRuntimeStatus; leave 'kubeflow' out of report_to elsewhere."
    )
