"""Metrics and files for DagsHub: its server of MLflow, and uploads to a repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hexloop.adapters.logger.mlflow import MLflow
from hexloop.adapters.logger.tracker import is_set, require
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import FINISHED, Outcome, RunInformation

UPLOADED_AFTER = ("finished", "stopped")
"""The outcomes after which there is time to upload."""


class DagsHub(MLflow):
    """Logger adapter for dagshub, with the variables of transformers' callback: those of `MLflow` and some more.

    MLFLOW_TRACKING_URI names the repository, as in https://dagshub.com/OWNER/NAME.mlflow. With HF_DAGSHUB_LOG_ARTIFACTS
    the folder of the run is uploaded at its end as `artifacts`, to the branch BRANCH, by default "main"; no data set
    is, which transformers would pickle. HF_DAGSHUB_MODEL_NAME has no effect there either.

    Raises ConfigurationError if dagshub or mlflow is missing, and from `start` if the address names no repository, or
    uploads are wanted and there is no login.
    """

    def __init__(self) -> None:
        require("dagshub", "dagshub", "dagshub", "0.5")
        super().__init__()
        self._uploads = is_set("HF_DAGSHUB_LOG_ARTIFACTS")
        self._repository = ("", "")
        self._folder: str | None = None

    def start(self, run: RunInformation) -> str | None:
        """Start or continue a run of MLflow; return its id."""
        self._repository = _repository(os.environ.get("MLFLOW_TRACKING_URI", ""))
        if self._uploads:
            _check_login()
        identity = super().start(run)
        self._folder = run.folder if self._uploads else None
        return identity

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Finish the run of MLflow, and upload its folder. If the upload fails, the next call tries it again."""
        super().finish(outcome)
        folder = self._folder
        if folder is None or outcome.kind not in UPLOADED_AFTER or not Path(folder).is_dir():
            return
        from dagshub.upload import Repo

        owner, name = self._repository
        with _unreachable_as_connection_errors():
            repository = Repo(owner=owner, name=name, branch=os.environ.get("BRANCH") or "main")
            repository.directory("artifacts").add_dir(folder)
        self._folder = None


def _repository(address: str) -> tuple[str, str]:
    """Return owner and name of the repository of a server of MLflow."""
    parts = address.rstrip("/").split("/")
    if len(parts) < 5:
        raise ConfigurationError(
            "Logging to dagshub requires MLFLOW_TRACKING_URI=https://dagshub.com/OWNER/NAME.mlflow, which "
            f"dagshub.init() sets, not {address!r}."
        )
    return parts[-2], parts[-1].removesuffix(".mlflow")


@contextmanager
def _unreachable_as_connection_errors() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.TransportError as error:
        raise ConnectionError(f"dagshub cannot be reached: {error}") from error


def _check_login() -> None:
    """Raise instead of letting dagshub ask in a browser."""
    from dagshub.auth import get_token

    if os.environ.get("DAGSHUB_USERNAME") and os.environ.get("DAGSHUB_PASSWORD"):
        return
    try:
        with _unreachable_as_connection_errors():
            get_token(fail_if_no_token=True)
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            "Uploads to dagshub require a token: set DAGSHUB_USER_TOKEN or run `dagshub login`, or unset "
            f"HF_DAGSHUB_LOG_ARTIFACTS ({error})"
        ) from error
