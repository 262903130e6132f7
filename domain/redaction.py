"""Text made safe to write and show, in files, logs, messages, reports and trackers: without secrets, and printable.

What looks like a secret is removed by its form: the user and password of a URL, signatures in its query, tokens of
known services, authorization headers, private keys, and values whose name says that they are secret. Values that are
known to be secret, such as those of environment variables, are removed wherever they occur; see `remember_secrets`.

A terminal obeys control characters: they move the cursor, change titles and colours, and hide what is printed. Text
from outside, such as names in a checkpoint, is printed without them; see `printable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

REMOVED = "***"

SHORTEST = 8
"""Characters of a known value that is removed wherever it occurs; a shorter one would hide ordinary words."""

_NAMES = (
    r"(?:passwords?|passwd|pwd|secrets?|credentials?|signature|(?:secret|access|account|private|api|auth|shared|storage|checkpoint)"
    r"[_-]?key(?:[_-]?id)?|apikey|(?:hub|hf|auth|access|api|refresh|session|security|sas|bearer|push_to_hub|bot)[_-]?token"
    r"|sas|sig)"
)

SECRET_NAME = re.compile(rf"(?:.*[._-])?(?:{_NAMES}|token)", re.IGNORECASE)
"""The name of a value that is secret, such as that of an environment variable."""

_VALUE = (  # not the name of a value that comes after it, which would be left without its name
    rf"(?!(?:None|null|true|false)\b|\*\*\*|<|[A-Za-z0-9_.-]{{0,40}}(?:{_NAMES}|token)[\"']?\s{{0,4}}[=:])"
    r"[^\s\"',;&})\]]"
)

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END ).)+", re.DOTALL), rf"\1{REMOVED}"),
    (re.compile(r"(://)(?!\*\*\*@)[^\s\"'<>@]{1,500}@(?:[^\s\"'<>@/?#]{0,500}@)*"), rf"\1{REMOVED}@"),
    (
        re.compile(r"([?&;](?:[A-Za-z0-9_.-]{0,40}(?:sig|token|secret|passw|credential|key|auth)[A-Za-z0-9_-]{0,40}=))"
                   r"(?!\*\*\*)[^&\s\"'<>#]+", re.IGNORECASE),
        rf"\1{REMOVED}",
    ),
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"
            r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
            r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{10,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
            r"|(?:pypi|npm|dop_v1|wandb_v1)[_-][A-Za-z0-9_-]{16,})"
        ),
        REMOVED,
    ),
    (re.compile(r"\b(Bearer|Basic|Token)(\s{1,4})(?=[^\s\"',;]*[0-9=/+])[A-Za-z0-9+/=._~-]{12,}", re.IGNORECASE),
     rf"\1\2{REMOVED}"),
    (re.compile(rf"((?<![A-Za-z0-9]){_NAMES}[\"']?\s{{0,4}}[=:]\s{{0,4}}[\"']?){_VALUE}+", re.IGNORECASE),
     rf"\1{REMOVED}"),
    (re.compile(rf"((?<![A-Za-z0-9_])(?<![A-Za-z0-9]-)token[\"']?\s{{0,4}}=\s{{0,4}}[\"']?){_VALUE}+", re.IGNORECASE),
     rf"\1{REMOVED}"),
)  # fmt: skip

WORKING_FOLDER = "PWD"
"""The variable in which a shell passes on its folder. Elsewhere, such a name is that of a password."""

_known: set[str] = set()


def remember_secrets(values: Iterable[object]) -> None:
    """Remove these values from all text from now on; those that are not text, or short, are ignored."""
    _known.update(value for value in values if isinstance(value, str) and len(value) >= SHORTEST)


def secret_values(named: Mapping[str, object]) -> list[object]:
    """Return the values of environment variables whose names say that they are secret."""
    return [value for name, value in named.items() if is_secret_name(name) and name != WORKING_FOLDER]


def is_secret_name(name: str) -> bool:
    """Return whether the name of a value says that it is secret."""
    return SECRET_NAME.fullmatch(name) is not None and name.lower() not in _HARMLESS


_HARMLESS = frozenset(
    f"{kind}_token"
    for kind in ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "decoder_start")
)
"""Special tokens of tokenizers."""


def redact(text: str) -> str:
    """Return the text without secrets. Linear in its length; redacting twice changes nothing."""
    for secret in sorted(_known, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, REMOVED)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _may_be_secret(text: str) -> bool:
    """Return whether the text of a secret name may be its value, rather than say that it has none or was removed."""
    return bool(text) and text[0] != "<" and text not in ("None", "null", "true", "false")


def user_of(url: str) -> str:
    """Return the user and password of a URL, whatever characters they have; "" if it has none.

    Characters that end the host of a valid URL may be part of a password that was not encoded.
    """
    _, separator, rest = url.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    if "@" not in host and not (":" in host and not host.rpartition(":")[2].isdecimal()):
        return ""
    return (host if "@" in host else rest).rpartition("@")[0] if separator else ""


def without_user(url: str) -> str:
    """Return a URL without its user and password."""
    user = user_of(url)
    return url.replace(f"{user}@", "", 1) if user else url


def redacted(value: Any) -> Any:
    """Return a JSON-like value with `redact` applied to its texts, and without values whose names are secret."""
    if isinstance(value, str):
        return redact(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {
            name: REMOVED
            if isinstance(name, str) and isinstance(inner, str) and is_secret_name(name) and _may_be_secret(inner)
            else redacted(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(inner) for inner in value]
    return value


# Control characters

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls, and DEL
    "\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible characters, line ends, and changes of direction
    "\ud800-\udfff]"  # lone surrogates, which cannot be encoded
)
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f", 1))


def printable(text: str) -> str:
    """Return the text on one line, with control characters and the like as escapes."""
    return _UNSAFE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return the text like `printable`, with its line breaks."""
    return _UNSAFE_IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(match[0])
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
