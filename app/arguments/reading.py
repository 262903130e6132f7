"""Files of values: YAML and JSON, each value with its line."""

from __future__ import annotations

import json
from pathlib import Path

from hexloop.app.arguments.documents import Document
from hexloop.app.arguments.yaml_reading import compose
from hexloop.domain.errors import ConfigurationError


def read_yaml(path: str | Path) -> Document:
    """The document in a YAML file. Raises `ConfigurationError` if there is none, or it is no YAML."""
    return compose(_text_of(path), str(path))


def read_json(path: str | Path) -> Document:
    """The document in a JSON file. Raises `ConfigurationError` if there is none, or it is no JSON."""
    text = _text_of(path)
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError([f"{path}, line {error.lineno}: This is no JSON ({error.msg}); mend it."]) from None
    # JSON is YAML but for tabs, so that a reader of YAML finds the lines and the keys that occur twice.
    document = compose(text.replace("\t", " "), str(path))
    document.values = values
    return document


def _text_of(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(
            [f"You chose the file {str(path)!r}, but it cannot be read ({reason}); name a readable file."]
        ) from error
