"""`hexloop run`: run code that was written for transformers on hexloop, or check that both libraries agree on it."""

from __future__ import annotations

from argparse import Namespace

from hexloop.app.takeover import takeover
from hexloop.app.takeover.scripts import Program


def run(options: Namespace) -> int:
    """Run the program with hexloop's classes and return its exit code.

    With `--check`, compare both libraries; with `--dry-run`, forecast its first run.
    """
    program = Program(options.program, _arguments_of_program(options), options.is_module)
    if options.check:
        from hexloop.app.takeover.checking import check

        return check(program)
    if options.dry_run:
        from hexloop.app.command_line.forecast import dry_run_program

        return dry_run_program(program, options.measure, options.reproduce)
    with takeover(reproduce=options.reproduce):
        return program.run()


def _arguments_of_program(options: Namespace) -> tuple[str, ...]:
    """Return what follows the program on the command line; argparse would drop a "--" from it."""
    argv: list[str] = options.argv
    return tuple(argv[argv.index(options.program, argv.index("run") + 1) + 1 :])
