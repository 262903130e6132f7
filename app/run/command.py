"""The shell command that started the process of a run, which its journal records."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile

from hexloop.domain.redaction import REMOVED, is_secret_name, redact

LAUNCHED_AS = "HEXLOOP_LAUNCHED_AS"
"""The environment variable in which `hexloop launch` passes its own arguments, up to the recipe, to its workers."""

LONGEST = 4_000
"""Characters of a command that are recorded."""

HEXLOOP = ["-m", "hexloop"]
NOTEBOOK = "ipykernel"


def command_of_process(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the command of a process without secrets; "" in a notebook, whose command does not tell what is run.

    argv: the arguments of the process with the interpreter and its options, as `sys.orig_argv` has them.
    """
    interpreter, *rest = argv
    options = list(takewhile(lambda each: each.startswith("-") and each not in ("-m", "-c"), rest))
    rest = rest[len(options) :]
    if any(each.startswith(NOTEBOOK) for each in rest[1:2]):
        return ""
    by_hexloop = rest[:2] == HEXLOOP or os.path.basename(rest[0] if rest else "") == "hexloop"
    start = [os.path.basename(interpreter), *options]
    if by_hexloop:
        start, rest = ["hexloop"], rest[2:] if rest[:2] == HEXLOOP else rest[1:]
    words = shlex.join(start)
    if launched := environment.get(LAUNCHED_AS):
        words = launched
        rest = rest[1:] if by_hexloop and rest[:1] == ["train"] else rest
    return redact(f"{words} {shlex.join(_without_secrets(rest))}".strip())[:LONGEST]


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the values of options whose name says that they are secret."""
    return [
        REMOVED if before.startswith("-") and is_secret_name(before.lstrip("-").replace("-", "_")) else argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
    ]
