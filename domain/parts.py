"""Small state, such as counters and options, as parts that are JSON documents."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hexloop.ports.state import JSON, Part


def json_part(name: str, value: Any) -> Part:
    """The JSON-like `value` as a part; what is handed out is what `value` was at the time of this call."""
    data = json.dumps(value).encode()
    return Part(name, JSON, (len(data),), 0, len(data), lambda: memoryview(data))


def json_value(part: Part) -> Any:
    """The value of a part that `json_part` made."""
    return json.loads(bytes(part.read()))


def only_value(parts: Iterable[Part], name: str) -> Any:
    """The value of the JSON part `name`, which must be the only one. Raises ValueError, naming what there is."""
    found = list(parts)
    if [part.name for part in found] != [name] or found[0].dtype != JSON:
        raise ValueError(f"Expected one JSON document named {name!r}, found {[part.name for part in found]}.")
    return json_value(found[0])
