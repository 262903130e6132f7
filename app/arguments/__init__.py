"""`TrainingArguments`, and ways to make them, or any attrs class or dataclass, from files and command lines.

Nothing here imports torch before a value that depends on a device is read.
"""

from hexloop.app.arguments.choices import (
    DebugOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SaveStrategy,
    SchedulerType,
)
from hexloop.app.arguments.command_line import add_arguments, override, parse, unknown_options
from hexloop.app.arguments.documents import Document, Place
from hexloop.app.arguments.reading import read_json, read_yaml
from hexloop.app.arguments.structure import from_dict, from_document, from_json_file, from_yaml_file
from hexloop.app.arguments.surroundings import Surroundings
from hexloop.app.arguments.training import TrainingArguments

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
