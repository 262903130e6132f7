"""`TrainingArguments`, and ways to make them, or any attrs class or dataclass, from files and command lines.

Nothing here imports torch before a value that depends on a device is read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hexloop.app.arguments.choices import (
    DebugOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SaveStrategy,
    SchedulerType,
)
from hexloop.app.arguments.training import TrainingArguments
from hexloop.app.environment import Surroundings

if TYPE_CHECKING:
    from hexloop.app.arguments.command_line import add_arguments, override, parse, unknown_options
    from hexloop.app.arguments.documents import Document, Place
    from hexloop.app.arguments.reading import read_json, read_yaml
    from hexloop.app.arguments.structure import from_dict, from_document, from_json_file, from_yaml_file

__all__ = [
    "DebugOption",
    "Document",
    "HubStrategy",
    "IntervalStrategy",
    "OptimizerNames",
    "ParallelMode",
    "Place",
    "SaveStrategy",
    "SchedulerType",
    "Surroundings",
    "TrainingArguments",
    "add_arguments",
    "from_dict",
    "from_document",
    "from_json_file",
    "from_yaml_file",
    "override",
    "parse",
    "read_json",
    "read_yaml",
    "unknown_options",
]

_READERS = {
    "command_line": ("add_arguments", "override", "parse", "unknown_options"),
    "documents": ("Document", "Place"),
    "reading": ("read_json", "read_yaml"),
    "structure": ("from_dict", "from_document", "from_json_file", "from_yaml_file"),
}
"""What reads files and command lines, by its module: a script that does neither does not load it."""


def __getattr__(name: str) -> Any:
    for module, names in _READERS.items():
        if name in names:
            return getattr(import_module(f"hexloop.app.arguments.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
