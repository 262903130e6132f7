"""The adapters at hand: hexloop's own, a folder a port, and those that installed packages bring as entry points."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.metadata import EntryPoint, distributions

from hexloop.app.command_line.doctor.report import PluginFound

ADAPTERS = "hexloop.adapters"


def adapters_by_port() -> dict[str, list[str]]:
    """The technologies that answer each port."""
    return {port: _names(f"{ADAPTERS}.{port}") for port in _names(ADAPTERS)}


def plugins() -> list[PluginFound]:
    """The entry points in hexloop's groups, each of them loaded."""
    found = {
        (each.group, each.name): each
        for distribution in distributions()
        for each in distribution.entry_points
        if each.group.startswith("hexloop.")
    }
    return [_plugin(found[key]) for key in sorted(found)]


def _plugin(entry_point: EntryPoint) -> PluginFound:
    try:
        entry_point.load()
        problem = None
    except Exception as error:  # whatever a foreign package raises when it is imported
        problem = f"{type(error).__name__}: {error}"
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.value
    return PluginFound(entry_point.group, entry_point.name, package, problem)


def _names(package: str) -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(import_module(package).__path__))
