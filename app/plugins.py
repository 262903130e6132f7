"""Adapters of installed packages, found through entry points of the groups "hexloop.<port>s"."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def plugin_names(port: str) -> list[str]:
    """Return the names of the adapters of `port` ("loggers", "storages", ...) in installed packages."""
    return sorted(entry_points(group=f"hexloop.{port}").names)


def find_plugin(port: str, name: str) -> Callable[..., Any] | None:
    """Import and return the entry point `name` of `port`; None if there is none."""
    found = entry_points(group=f"hexloop.{port}", name=name)
    for entry_point in found:
        loaded: Callable[..., Any] = entry_point.load()
        return loaded
    return None
