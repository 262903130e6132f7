"""Limits on what is read: documents, tensor files, journals and imports that may be damaged or hostile.

Every reader takes its bounds from here. They are far beyond what a run writes, so they stop only files that would
exhaust memory or time. `docs/limits.md` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType

from attrs import evolve, field, fields, frozen

from hexloop.domain.errors import ConfigurationError

MIB = 1 << 20


@frozen
class Limits:
    """Bounds on what is read. Sizes are in bytes."""

    document_bytes: int = field(default=128 * MIB, metadata={"help": "size of a JSON document"})
    document_depth: int = field(default=100, metadata={"help": "nesting of lists and objects in a JSON document"})
    document_values: int = field(
        default=1_000_000,
        metadata={
            "help": "values in a JSON document, keys included, besides one for every 8 bytes of all but optimizers"
        },
    )
    document_digits: int = field(default=1_000, metadata={"help": "digits of a number in a JSON document"})
    tensor_header_bytes: int = field(default=100 * MIB, metadata={"help": "size of the header of a safetensors file"})
    tensor_dimensions: int = field(default=64, metadata={"help": "dimensions of a tensor"})
    hole_bytes: int = field(
        default=2 << 30,
        metadata={"help": "bytes of holes in the files of a checkpoint, besides 15 for each byte that is on the disk"},
    )
    line_bytes: int = field(default=16 * MIB, metadata={"help": "length of a line in a journal or log"})
    note_bytes: int = field(default=64 << 10, metadata={"help": "size of a note such as `damaged.txt`"})
    recipe_bytes: int = field(default=MIB, metadata={"help": "size of a recipe or arguments file"})
    recipe_depth: int = field(default=50, metadata={"help": "nesting of lists and mappings in a recipe"})
    recipe_values: int = field(default=20_000, metadata={"help": "values in a recipe, with its aliases expanded"})
    import_memory_bytes: int = field(
        default=512 * MIB, metadata={"help": "memory of the process that reads pickled files"}
    )
    import_seconds: int = field(
        default=600, metadata={"help": "seconds that reading the pickled files of an import may take"}
    )
    log_bytes: int = field(
        default=1 << 30, metadata={"help": "bytes of a journal or log that a report reads: half of each end"}
    )
    outbox_bytes: int = field(
        default=1 << 38,
        metadata={"help": "bytes that waiting pushes to a hub may keep of checkpoints that are removed otherwise"},
    )
    entry_bytes: int = field(
        default=4 * MIB, metadata={"help": "size of an entry of an outbox, or of the description of a tracker in it"}
    )
    command_bytes: int = field(default=4 << 10, metadata={"help": "size of a command of the board to a run"})
    spool_bytes: int = field(
        default=32 * MIB, metadata={"help": "size of the logs of a run that wait for its trackers"}
    )
    token_bytes: int = field(
        default=1 << 30, metadata={"help": "size of a file with the tokens of samples that are fine-tuned on"}
    )


_in_force = [Limits()]


def limits() -> Limits:
    """Return the limits in force."""
    return _in_force[0]


class reading_limits(AbstractContextManager[Limits]):  # noqa: N801  # used like a function, as torch.set_grad_enabled is
    """Change limits on what hexloop reads, in the whole process and all its threads.

    Takes effect when called. As a context manager, it restores the earlier limits at the end of the block:

        hexloop.reading_limits(document_bytes=1 << 30)

        with hexloop.reading_limits(import_seconds=3600):
            ...

    Args:
        **changes: limits by name.

    Raises:
        ConfigurationError: listing every problem, for an unknown name and for a value that is not a whole number
            greater than 0.
    """

    def __init__(self, **changes: int) -> None:
        if problems := _problems(changes):
            raise ConfigurationError(problems)
        self._before = limits()
        _in_force[0] = evolve(self._before, **changes)

    def __enter__(self) -> Limits:
        """Return the limits in force."""
        return limits()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the limits from before the call."""
        _in_force[0] = self._before


def _problems(changes: Mapping[str, object]) -> list[str]:
    known = [each.name for each in fields(Limits)]
    return [
        f"There is no limit {name!r}. The limits are {', '.join(known)}."
        if name not in known
        else f"The limit {name} is {value!r}; set it to a whole number greater than 0."
        for name, value in changes.items()
        if name not in known or type(value) is not int or value < 1
    ]


_SIZE = re.compile(r"([0-9][0-9_,]*)(?: ?([KMGT]?i?)B)?", re.IGNORECASE)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def limits_in(texts: Iterable[str]) -> dict[str, int]:
    """Return the limits in texts such as "import_seconds=3600" and "document_bytes=256MiB".

    A size may have one of the units kB, MB, GB, KiB, MiB and GiB. Raises ConfigurationError, listing every problem.
    """
    found, problems = dict[str, int](), list[str]()
    for text in texts:
        name, _, value = text.partition("=")
        match = _SIZE.fullmatch(value.strip()) if len(value) < 30 else None
        unit = _UNITS.get((match[2] or "").lower()) if match else None
        if match is None or unit is None or (match[2] is not None and not name.endswith("_bytes")):
            unit_allowed = " or a size such as 256MiB" if name.endswith("_bytes") or not name else ""
            problems.append(f"You chose the limit {text!r}; write it as NAME=VALUE with a whole number{unit_allowed}.")
        else:
            found[name] = int(match[1].replace("_", "").replace(",", "")) * unit
    if problems := [*problems, *_problems(found)]:
        raise ConfigurationError(problems)
    return found
