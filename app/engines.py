"""The table of engines: how each is chosen, and where it is found; and the look-up of adapters in installed packages.

To add an engine, add a folder to `hexloop.adapters.engines` and a row here. An installed package adds a row of its own
through the entry point group "hexloop.engines".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from hexloop.app.environment import is_on
from hexloop.domain.wording import parse_truth
from hexloop.ports.engine import Engine, EngineRow


class EngineChoice(Protocol):
    """The arguments by which hexloop's engines are chosen."""

    deepspeed: Any
    fsdp: Any
    fsdp_config: Any

    @property
    def device_name(self) -> str:
        """The name of the device of this process."""

    @property
    def world_size(self) -> int:
        """The number of processes of the run."""


def _shards(args: EngineChoice) -> bool:
    return bool(args.fsdp) or is_on("ACCELERATE_USE_FSDP")


def _is_for_xla(args: EngineChoice, key: str = "xla") -> bool:
    return isinstance(args.fsdp_config, Mapping) and parse_truth(str(args.fsdp_config.get(key))) is True


ENGINES: tuple[EngineRow[EngineChoice], ...] = (
    EngineRow(
        "deepspeed",
        lambda args: bool(args.deepspeed) or is_on("ACCELERATE_USE_DEEPSPEED"),
        "hexloop.adapters.engines.deepspeed.engine:ENGINE",
    ),
    EngineRow(
        "xla_fsdp_v2",
        lambda args: _shards(args) and _is_for_xla(args) and _is_for_xla(args, "xla_fsdp_v2"),
        "hexloop.adapters.engines.xla.engine:FSDP",
        options=("fsdp_config",),
    ),
    EngineRow(
        "xla_fsdp",
        lambda args: _shards(args) and _is_for_xla(args),
        "hexloop.adapters.engines.xla.fsdp:ENGINE",
        options=("fsdp_config",),
    ),
    EngineRow(
        "fsdp",
        lambda args: _shards(args) and not _is_for_xla(args),
        "hexloop.adapters.engines.fsdp.engine:ENGINE",
        least_processes=2,
        options=("fsdp_config",),
    ),
    EngineRow("xla", lambda args: args.device_name.startswith("xla"), "hexloop.adapters.engines.xla.engine:ENGINE"),
    EngineRow("ddp", lambda args: args.world_size > 1, "hexloop.adapters.engines.ddp.engine:ENGINE"),
    EngineRow("single", lambda _: True, "hexloop.adapters.engines.single.engine:ENGINE"),
)
"""The first row that is requested, in a run of enough processes, is the engine of the run."""


def engine_for(args: EngineChoice) -> Engine[Any, Any]:
    """Return the engine that the arguments and the launcher choose; an installed package's before hexloop's own.

    Raises ConfigurationError if an environment variable that chooses an engine is not a truth value.
    """
    rows = (*installed_rows(), *ENGINES)
    row = next(row for row in rows if args.world_size >= row.least_processes and row.requested(args))
    engine: Engine[Any, Any] = resolve_name(row.target)
    return engine


def is_requested(name: str, args: EngineChoice) -> bool:
    """Return whether the arguments or the launcher choose hexloop's engine of that name."""
    return next(row for row in ENGINES if row.name == name).requested(args)


@cache
def installed_rows() -> tuple[EngineRow[Any], ...]:
    """Return the rows of installed packages, which are looked up once per process."""
    found = (find_plugin("engines", name) for name in plugin_names("engines"))
    return tuple(cast("EngineRow[Any]", row) for row in found if row is not None)


def plugin_names(port: str) -> list[str]:
    """Return the names of the adapters of `port` ("loggers", "storages", ...) in installed packages."""
    return sorted(entry_points(group=f"hexloop.{port}").names)


def find_plugin(port: str, name: str) -> Callable[..., Any] | None:
    """Import and return the entry point `name` of `port`; None if there is none."""
    return next((found.load() for found in entry_points(group=f"hexloop.{port}", name=name)), None)


def xla_fsdp_settings(args: Any) -> dict[str, Any]:
    """Return the settings of FSDP on XLA, with torch's types; empty without it."""
    if not (_shards(args) and _is_for_xla(args)):
        return {}
    found: dict[str, Any] = resolve_name("hexloop.adapters.engines.xla.options:settings_by_torch")(args.fsdp_config)
    return found


def fsdp_plugin_arguments(args: Any) -> dict[str, Any]:
    """Return FSDP's options as keywords of accelerate's plugin for it."""
    found: dict[str, Any] = resolve_name("hexloop.adapters.engines.fsdp.plugin:plugin_arguments")(args)
    return found
