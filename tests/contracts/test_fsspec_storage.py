"""What an fsspec storage shows of errors, and what it makes of a file system that is slow, full or forgetful."""

from __future__ import annotations

import errno
import traceback
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.domain.errors import ConfigurationError, StorageError, StorageFullError
from hexloop.ports.storage import Publication

SECRETS = ("pa$$word", "pa%24%24word", "s3cr3t-value", "someone", "signed-away")


class AnsweredError(OSError):
    """An error that carries the answer of a server, as those of the hub do."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} is the answer")
        self.response = SimpleNamespace(status_code=status)


class Unreliable(MemoryFileSystem):  # type: ignore[misc] # fsspec carries no types
    """Raises what `failures` holds, one at a time, before it does anything."""

    protocol = "unreliable"
    cachable = False
    failures: ClassVar[list[Exception]] = []
    asked = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("unreliable://", "memory://")))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        Unreliable.asked += 1
        if Unreliable.failures:
            raise Unreliable.failures.pop(0)
        return super().ls(path, detail, **options)


@pytest.fixture(autouse=True)
def unreliable() -> Iterator[type[Unreliable]]:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    yield Unreliable
    Unreliable.failures, Unreliable.asked = [], 0


def storage_of(failures: list[Exception], pauses: tuple[float, ...] = (0.0, 0.0)) -> FsspecStorage:
    storage = FsspecStorage(f"unreliable://{uuid.uuid4().hex}/run", pauses=pauses)
    Unreliable.failures = failures
    return storage


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        TimeoutError("late"),
        OSError(errno.EIO, "busy"),
        AnsweredError(429),
        AnsweredError(503),
    ],
)
def test_what_may_pass_is_tried_again_and_again(error: Exception) -> None:
    """Two failures are made up for by the third attempt; three are reported, and end it."""
    assert storage_of([error, error]).list("") == ()
    with pytest.raises(StorageError, match="Try again later"):
        storage_of([error] * 3).list("")
    assert Unreliable.asked == 6


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError("no"), "Check the credentials"),
        (NotImplementedError("no"), "supports writing"),
        (ValueError("no"), "Check the URL"),
        (AnsweredError(401), "Check the credentials"),
        (AnsweredError(403), "Check the credentials"),
        (AnsweredError(422), "Check the URL"),
    ],
)
def test_what_does_not_pass_is_told_at_once(error: Exception, advice: str) -> None:
    """There is one attempt, and the message says what to do."""
    with pytest.raises(StorageError, match=advice):
        storage_of([error]).list("")
    assert Unreliable.asked == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_place_is_told_as_such(number: int) -> None:
    """Where there is no room, the error is that of a full storage."""
    with pytest.raises(StorageFullError, match="Free some space"):
        storage_of([OSError(number, "full")]).list("")


def test_a_server_without_room_is_a_full_place() -> None:
    """An answer that says so, however the error carries it, is told at once."""
    with pytest.raises(StorageFullError, match="Free some space"):
        storage_of([AnsweredError(507)]).list("")
    assert Unreliable.asked == 1


def test_no_message_tells_a_secret() -> None:
    """User, password, keys and what is in a query are shown nowhere: not in the location, an error, or its causes."""
    url = f"unreliable://someone:pa%24%24word@host/{uuid.uuid4().hex}?signature=signed-away"
    options = {"secret": "s3cr3t-value", "client": {"token": "s3cr3t-value"}, "region": "here"}
    storage = FsspecStorage(url, options, pauses=())
    assert storage.capabilities.location.startswith("unreliable://host/")
    cause = ValueError("https://someone:pa$$word@host/?X-Signature=signed-away&region=here")
    error = ConnectionError(f"no answer to {url} with {options}")
    error.__cause__ = cause
    Unreliable.failures = [error]
    with pytest.raises(StorageError, match=r"no answer to .*here") as raised:
        storage.list("")
    shown = "".join(traceback.format_exception(raised.value)) + storage.capabilities.location
    assert [secret for secret in SECRETS if secret in shown] == []


def test_a_harmless_cause_is_kept() -> None:
    """Where there is nothing to hide, what led to an error is shown with it."""
    cause = ConnectionError("reset")
    with pytest.raises(StorageError) as raised:
        storage_of([cause], pauses=()).list("")
    assert raised.value.__cause__ is cause


def test_it_says_how_it_publishes() -> None:
    """There is no rename, and no folder of this machine."""
    capabilities = FsspecStorage("memory://somewhere/else/").capabilities
    assert capabilities.publication is Publication.MANIFEST_LAST
    assert (capabilities.location, capabilities.local_folder) == ("memory://somewhere/else", None)


def test_an_unknown_digest_is_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(ConfigurationError, match=r"'md5'.*xxh3-128, blake2b"):
        FsspecStorage("memory://anywhere", digest="md5")
