"""The adapters of a run that no one else sees: it reports and publishes nothing and is not interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.host_memory import free_memory
from hexloop.adapters.hub import NoHub
from hexloop.adapters.interrupts import NoInterrupts
from hexloop.adapters.journal import NoJournal

__all__ = ["free_memory"]
"""A function of an adapter that other modules of the app import from here."""

KEPT = ("device", "precision", "framework", "clock", "collectives", "parallelism")
"""The adapters of the user's that such a run uses. Others are places and services that it must not touch."""


def private_adapters(passed: Mapping[str, Any], alone: bool = False) -> dict[str, Any]:
    """Return the adapters to pass to the Trainer of such a run.

    passed: those that the user passed. alone: the model is not spread over processes.
    """
    kept = {name: each for name, each in passed.items() if name in KEPT}
    if alone:
        kept["parallelism"] = SingleProcess()
    return {**kept, "loggers": [], "hub": NoHub(), "journal": NoJournal(), "interrupts": NoInterrupts()}
