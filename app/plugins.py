"""Third-party adapters, found through entry points: the group "hexloop.<port>s", the name that arguments use."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def plugin_names(port: str) -> list[str]:
    """The names under which installed packages offer adapters of `port` ("loggers", "storages", ...)."""
    return sorted(entry_points(group=f"hexloop.{port}").names)


def find_plugin(port: str, name: str) -> Callable[..., Any] | None:
    """What the entry point `name` of `port` stands for, imported now; None where there is none."""
    found = entry_points(group=f"hexloop.{port}", name=name)
    for entry_point in found:
        loaded: Callable[..., Any] = entry_point.load()
        return loaded
    return None
