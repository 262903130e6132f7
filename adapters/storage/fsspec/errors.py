"""Errors of fsspec file systems: which are transient, what to advise, and which texts are secret."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from hexloop.domain.errors import StorageError, StorageFullError

Response = TypeVar("Response")

_PERMANENT = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PERMANENT_NUMBERS = _FULL | {errno.EINVAL, errno.EPERM, errno.EROFS, errno.ENOSYS, errno.ENAMETOOLONG}
_FORBIDDEN_CODES = frozenset({"401", "403"})
_REFUSED_CODES = _FORBIDDEN_CODES | {"400", "404", "405", "410", "422"}
_FULL_CODES = frozenset({"QuotaExceeded", "StorageFull", "XMinioStorageFull", "InsufficientStorage", "507"})
_ADVICE: Mapping[type[Exception], str] = {
    FileNotFoundError: "Check the name; the bucket, or the first folder of the URL, must exist",
    FileExistsError: "Remove it, or choose another name",
    PermissionError: "Check the credentials that this process uses, and their permissions",
    NotImplementedError: "Choose a URL scheme that supports writing",
}
_SECRET = re.compile("key|secret|token|passw|credential|sas|signature", re.IGNORECASE)
_QUERY = re.compile(r"\?[^\s'\"<>]*[=&][^\s'\"<>]*")


def shown_url(url: str) -> str:
    """Return a URL without user, password and query."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}".rstrip("/")


def secrets_of(url: str, options: Mapping[str, object]) -> frozenset[str]:
    """Return the texts that no message may show: user and password of a URL, and options named like a secret."""
    user_information = urlsplit(url).netloc.rpartition("@")[0]
    found = {*user_information.split(":"), *map(unquote, user_information.split(":"))}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_of("", value)
        elif isinstance(value, str) and _SECRET.search(name):
            found.add(value)
    return frozenset(found - {""})


def with_retries(act: Callable[[], Response], pauses: tuple[float, ...]) -> Response:
    """Return what `act` returns, retrying after each pause if it failed for a transient reason."""
    for pause in pauses:
        try:
            return act()
        except Exception as error:
            if not _is_transient(error):
                raise
        sleep(pause)
    return act()


@contextmanager
def converting_errors(action: str, location: str, secrets: frozenset[str]) -> Iterator[None]:
    """Convert every exception to StorageError, with secrets removed from the message."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        texts = [str(each) for each in _with_causes(error)]
        without_secrets = not any(_redacted(text, secrets) != text for text in texts)
        text = _redacted(texts[0], secrets) or type(error).__name__
        # The cause is chained unless its text contains a secret.
        raise _converted(error, f"Cannot {action} in {location}: {text.rstrip('.')}") from (
            error if without_secrets else None
        )


def _converted(error: Exception, text: str) -> StorageError:
    if _is_full(error):
        return StorageFullError(f"{text}. Free some space, or choose another location.")
    kind = PermissionError if _code(error) in _FORBIDDEN_CODES else type(error)
    advice = next((advice for each, advice in _ADVICE.items() if issubclass(kind, each)), None)
    if advice is None:
        advice = (
            "Try again later, or choose another location" if _is_transient(error) else "Check the URL and its options"
        )
    return StorageError(f"{text}. {advice}.")


def _is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed: a broken connection, a timeout, a server that is busy."""
    return not (
        isinstance(error, (*_PERMANENT, StorageError))
        or (isinstance(error, OSError) and error.errno in _PERMANENT_NUMBERS)
        or _code(error) in _REFUSED_CODES
        or "Credentials" in type(error).__name__
        or _is_full(error)
    )


def _is_full(error: Exception) -> bool:
    return any(
        (isinstance(each, OSError) and each.errno in _FULL) or _code(each) in _FULL_CODES
        for each in _with_causes(error)
    )


def _code(error: BaseException) -> str:
    """Return the error code of the service, or else the HTTP status; "" if there is neither."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "status", getattr(response, "status_code", "")))


def _with_causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


def _redacted(text: str, secrets: frozenset[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _QUERY.sub("?***", text)
