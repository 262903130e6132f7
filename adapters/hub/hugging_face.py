"""The Hugging Face Hub, or a service of the same interface."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from time import time
from typing import Any, NoReturn

from hexloop.domain.errors import RefusedError, StorageError, UnavailableError
from hexloop.domain.redaction import redact, remember_secrets
from hexloop.ports.storage import File

DEFINITE = frozenset({400, 401, 403, 404, 405, 410, 413, 422})
"""The status codes of requests that will not be accepted if they are repeated."""

TEXTS = (".json", ".jsonl", ".txt", ".md", ".yaml", ".jinja", ".py")
"""The endings of files that a hub keeps in the repository itself unless they are large."""

LARGE = 5_000_000
"""Bytes, half of those from which on the Hugging Face Hub keeps the content of any file apart."""

_ADVICE = {
    400: "Check the name and the files",
    401: "Check the token: set HF_TOKEN, pass hub_token, or run `hf auth login`",
    403: "Use a token that may write to this repository, or choose another hub_model_id",
    404: "Check the name, and that the token may see this repository",
    413: "Publish fewer or smaller files",
}


class HuggingFaceHub:
    """Hub adapter by the package huggingface_hub.

    Each version is one commit, whose name is its hash. A commit that deletes files has the version that it was made
    from as its parent, so that it is not made on top of another one. Files that are unchanged are not sent, and a
    commit without a change is not made. A branch such as "refs/pr/3" is an open pull request.

    Args:
        endpoint: the address of the service; None for the package's own (`HF_ENDPOINT`).
        token: None for that of the environment or the login of this machine. It is never shown.
    """

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        self._endpoint, self._token = endpoint, token
        self._private: dict[str, bool | None] = {}
        if token is not None:
            remember_secrets([token])

    @property
    def address(self) -> str:
        """The address of the service."""
        return (self._endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")

    def create(self, name: str, private: bool | None = None) -> str:
        """Create a model's repository; see `Hub.create`."""
        with self._converting_errors(f"create {name}"):
            created: str = self._api.create_repo(name, private=private, exist_ok=True).repo_id
            self._private[created] = private
            return created

    def publish(
        self,
        name: str,
        files: Iterable[File],
        message: str,
        *,
        delete: Sequence[str] = (),
        branch: str | None = None,
        parent: str | None = None,
        review: bool = False,
    ) -> str:
        """Make a commit; see `Hub.publish`. Files that are not on this machine are written to a temporary folder."""
        folder = tempfile.mkdtemp()
        try:
            local = {file.path: _local_path(file, folder, number) for number, file in enumerate(files)}
            with self._converting_errors(f"publish {name}"), _without_progress_bars():

                def commit() -> str:
                    return self._commit(name, local, message, delete, branch, parent, review)

                return self._with_repository(name, None if review else branch, commit)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a commit, tag or branch; see `Hub.fetch`."""
        with self._converting_errors(f"fetch {version or 'the newest version'} of {name}"):
            commit = str(self._api.repo_info(name, revision=version).sha)
            paths = self._paths(name, commit)
        return (File(path, self._chunks(name, path, commit)) for path in paths)

    @cached_property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self._endpoint, token=self._token, library_name="hexloop")

    def _commit(
        self,
        name: str,
        files: dict[str, str],
        message: str,
        delete: Sequence[str],
        branch: str | None,
        parent: str | None,
        review: bool,
    ) -> str:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [CommitOperationAdd(path, local) for path, local in files.items()]
        self._upload(name, operations, branch, review)
        if delete:
            newest = str(self._api.repo_info(name, revision=branch).sha)
            parent = newest if parent is None else parent
            operations += [
                CommitOperationDelete(path)
                for path in self._paths(name, parent)
                if path not in files
                and any(path == each or (each.endswith("/") and path.startswith(each)) for each in delete)
            ]
        made = self._api.create_commit(
            name, operations, commit_message=message, revision=branch, parent_commit=parent, create_pr=review
        )
        return str(made.oid)

    def _upload(self, name: str, operations: Sequence[Any], branch: str | None, review: bool) -> None:
        """Upload the content of large files, one after the other.

        Together, the package would upload them in threads that Python waits for at its exit, however slow the hub is.
        """
        large = [each for each in operations if _may_be_large(each.path_in_repo, each.upload_info.size)]
        if len(large) > 1:
            for each in large:
                self._api.preupload_lfs_files(name, [each], revision=branch, create_pr=review, free_memory=False)

    def _with_repository(self, name: str, branch: str | None, commit: Callable[[], str]) -> str:
        """Call `commit`, again after making the repository or the branch if there was none."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            return commit()
        except RepositoryNotFoundError:
            self._api.create_repo(name, private=self._private.get(name), exist_ok=True)
        except RevisionNotFoundError:
            pass
        if branch is not None and not branch.startswith("refs/"):
            self._api.create_branch(name, branch=branch, exist_ok=True)
        return commit()

    def _paths(self, name: str, version: str) -> list[str]:
        found: list[str] = self._api.list_repo_files(name, revision=version)
        return [path for path in found if path != ".gitattributes"]  # which the hub itself adds

    def _chunks(self, name: str, path: str, commit: str) -> Iterator[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            with self._converting_errors(f"fetch {path} of {name}"), _without_progress_bars():
                local = self._api.hf_hub_download(name, path, revision=commit, local_dir=folder)
            with open(local, "rb") as file:
                while chunk := file.read(1 << 20):
                    yield chunk

    @contextmanager
    def _converting_errors(self, action: str) -> Iterator[None]:
        """Convert the errors of the package to RefusedError and UnavailableError."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            self._raise(action, error)

    def _raise(self, action: str, error: Exception) -> NoReturn:
        from huggingface_hub.errors import HFValidationError

        cause: BaseException = error
        while _response(cause) is None and cause.__cause__ is not None:  # an upload in a thread of the package
            cause = cause.__cause__
        response = _response(cause)
        reason = redact(" ".join(str(cause).split())) or type(cause).__name__
        problem = f"Cannot {action} on {self.address}: {reason}".rstrip(".")
        if response is not None and response.status_code in DEFINITE:
            advice = _ADVICE.get(response.status_code, "Check the name and the files")
            raise RefusedError(f"{problem}. {advice}.") from error
        if isinstance(error, HFValidationError) or type(error) is ValueError:  # not one of its kinds, as for bad JSON
            raise RefusedError(f"{problem}. Correct it.") from error
        raise UnavailableError(f"{problem}.", None if response is None else _retry_after(response)) from error


def _may_be_large(path: str, size: int) -> bool:
    """Return whether a hub may keep the content of a file apart from the repository, by its kind and size."""
    return size > LARGE or not path.endswith(TEXTS)


def _response(error: BaseException) -> Any:
    """Return the response of the hub in an error; None if there was none."""
    return getattr(error, "response", None)


def _retry_after(response: Any) -> float | None:
    """Return the seconds that a hub asks to wait, which it states as a number or a date; None if it does not."""
    text = response.headers.get("Retry-After") or ""
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    return None


def _local_path(file: File, folder: str, number: int) -> str:
    """Return the path of a file on this machine, after writing it to `folder` if it is not there yet."""
    if file.local is not None:
        return file.local
    path = Path(folder, str(number))
    with path.open("xb") as opened:
        opened.writelines(file.chunks)
    return str(path)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
