"""What a file system's errors mean: whether they may pass, what to do about them, and what of them may be shown."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from hexloop.domain.errors import StorageError, StorageFullError

Answer = TypeVar("Answer")

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
    FileNotFoundError: "check the name; a bucket, or the first folder of a URL, must be there already",
    FileExistsError: "remove it, or choose another name",
    PermissionError: "check the credentials that this process finds, and what they allow",
    NotImplementedError: "choose a kind of URL that can be written to",
}
_SECRET = re.compile("key|secret|token|passw|credential|sas|signature", re.IGNORECASE)
_QUERY = re.compile(r"\?[^\s'\"<>]*[=&][^\s'\"<>]*")


def shown_url(url: str) -> str:
    """A URL without user, password and query."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}".rstrip("/")


def secrets_of(url: str, options: Mapping[str, object]) -> frozenset[str]:
    """What no message may show: the user and the password of a URL, and options that are called a key or the like."""
    user_information = urlsplit(url).netloc.rpartition("@")[0]
    found = {*user_information.split(":"), *map(unquote, user_information.split(":"))}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_of("", value)
        elif isinstance(value, str) and _SECRET.search(name):
            found.add(value)
    return frozenset(found - {""})


def with_retries(act: Callable[[], Answer], pauses: tuple[float, ...]) -> Answer:
    """What `act` gives, tried again after each pause where it failed for a reason that may pass."""
    for pause in pauses:
        try:
            return act()
        except Exception as error:
            if not _may_pass(error):
                raise
        sleep(pause)
    return act()


@contextmanager
def reporting(action: str, location: str, secrets: frozenset[str]) -> Iterator[None]:
    """Turn whatever is raised into hexloop's errors, without what is secret."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        said = [str(each) for each in _with_causes(error)]
        harmless = not any(_hidden(text, secrets) != text for text in said)
        text = _hidden(said[0], secrets) or type(error).__name__
        # What led to it is shown beside an error, unless that would tell a secret.
        raise _meant(error, f"You chose to {action} in {location}, but {text.rstrip('.')}") from (
            error if harmless else None
        )


def _meant(error: Exception, text: str) -> StorageError:
    if _is_full(error):
        return StorageFullError(f"{text}; make room, or choose another place.")
    kind = PermissionError if _code(error) in _FORBIDDEN_CODES else type(error)
    advice = next((advice for each, advice in _ADVICE.items() if issubclass(kind, each)), None)
    if advice is None:
        advice = "try again later, or choose another place" if _may_pass(error) else "check the URL and its options"
    return StorageError(f"{text}; {advice}.")


def _may_pass(error: Exception) -> bool:
    """Whether the same request may be answered later: a connection that broke, a delay, a server that is too busy."""
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
    """The service's own code for an error, or else the HTTP status; "" where it has neither."""
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


def _hidden(text: str, secrets: frozenset[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _QUERY.sub("?***", text)
