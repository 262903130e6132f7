"""The table of engines: how each is chosen, and where it is found.

To add an engine, add a folder to `hexloop.adapters.engines` and a row here. An installed package adds a row of its own
through the entry point group "hexloop.engines".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pkgutil import resolve_name
from typing import Any, cast

from hexloop.app.arguments import TrainingArguments
from hexloop.app.environment import is_on
from hexloop.app.joining import join
from hexloop.app.plugins import find_plugin, plugin_names
from hexloop.ports.engine import Engine, EngineRow

Row = EngineRow[TrainingArguments]

ENGINES = (
    Row(
        "deepspeed",
        lambda args: bool(args.deepspeed) or is_on("ACCELERATE_USE_DEEPSPEED"),
        "hexloop.app.deepspeed.engine:ENGINE",
    ),
    Row(
        "fsdp",
        lambda args: bool(args.fsdp) or is_on("ACCELERATE_USE_FSDP"),
        "hexloop.app.fsdp.making:ENGINE",
        least_processes=2,
        options=("fsdp_config",),
    ),
    Row("ddp", lambda args: args.world_size > 1, "hexloop.adapters.engines.ddp.engine:ENGINE"),
    Row("single", lambda args: True, "hexloop.adapters.engines.single.engine:ENGINE"),
)
"""The first row that is requested, in a run of enough processes, is the engine of the run."""


def engine_for(args: TrainingArguments) -> Engine[TrainingArguments, Any]:
    """Return the engine that the arguments and the launcher choose; an installed package's before hexloop's own.

    Raises ConfigurationError if an environment variable that chooses one has no valid value.
    """
    rows = (*_installed(), *ENGINES)
    row = next(row for row in rows if args.world_size >= row.least_processes and row.requested(args))
    engine: Engine[TrainingArguments, Any] = resolve_name(row.target)
    return engine


def is_requested(name: str, args: TrainingArguments) -> bool:
    """Return whether the arguments or the launcher choose hexloop's engine of that name."""
    return next(row for row in ENGINES if row.name == name).requested(args)


@contextmanager
def zero3_init(args: TrainingArguments) -> Iterator[None]:
    """Spread the parameters of every module over the processes as it is created, if ZeRO 3 is chosen.

    Every process draws the same weights as without, one module's at a time. Create models of transformers by
    `from_pretrained` or `from_config` in this context: their own classes fill in weights when the whole is there. If
    ZeRO 3 is not chosen, nothing happens. Collective. Raises ConfigurationError for an invalid DeepSpeed configuration.
    """
    with engine_for(args).sharded_init(args, partial(join, args)):
        yield


def _installed() -> list[Row]:
    found = (find_plugin("engines", name) for name in plugin_names("engines"))
    return [cast(Row, row) for row in found if row is not None]
