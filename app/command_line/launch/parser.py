"""The options of `hexloop launch`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

USAGE = "hexloop launch [--processes N] [--restarts K] [option ...] RECIPE-or-SCRIPT.py [word ...]"

LAUNCH = """\
Runs a recipe, or a Python script, in several processes that train together, on one
machine or many. A recipe runs as by `hexloop train`, a file that ends in .py as by
`python`; what stands after its name is for it. Each process finds its place in the
variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...).

When a process dies, all are ended, and with --restarts they are started again: a
recipe goes on from its newest checkpoint. Options stand before the recipe."""

EXAMPLES = """\
examples:
  hexloop launch --processes 2 recipe.yaml --max_steps 100
  hexloop launch --processes 2 --restarts 3 --log-folder logs recipe.yaml --resume auto
  hexloop launch --processes 8 --nodes 2 --node-rank 0 --rendezvous node0:29400 train.py

exit codes:
  0    every process ended with 0
  2    an option is wrong: nothing was started
  n    that of the process that failed first; 128 + n where signal n ended it.
       A process that ends with 2 (wrong configuration) or 3 (stopped, and saved)
       is not restarted
"""


def add_launch(
    commands: Commands,
    add_common: Callable[[argparse.ArgumentParser], None],
    formatter: type[argparse.HelpFormatter],
) -> None:
    """Add the command `launch`. Values are read as words, so that all that are wrong can be told at once."""
    parser = commands.add_parser(
        "launch",
        help="run a recipe or a script in several processes",
        usage=USAGE,
        description=LAUNCH,
        epilog=EXAMPLES,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    add_common(parser)
    here = parser.add_argument_group("processes")
    here.add_argument("--processes", metavar="N", help="how many on this machine (default: one for each GPU)")
    here.add_argument(
        "--restarts", metavar="K", default="0", help="how often all are started again when one dies (default: 0)"
    )
    here.add_argument(
        "--grace",
        metavar="SECONDS",
        default="30",
        help="how long they may take to save and end at Ctrl-C or SIGTERM, before they are killed (default: 30)",
    )
    here.add_argument("--log-folder", metavar="DIR", help="also keep what each process prints, in DIR/rank-<rank>.log")
    nodes = parser.add_argument_group("several machines; the command is given on each of them")
    nodes.add_argument(
        "--nodes",
        metavar="M",
        default="1",
        help="how many; MIN:MAX where some may join or leave while the others go on (default: 1)",
    )
    nodes.add_argument("--rendezvous", metavar="HOST:PORT", help="where they meet: a free port of one of them")
    nodes.add_argument(
        "--node-rank",
        metavar="R",
        help="the place of this one, from 0, which has to be at HOST and holds rank 0 (default: as it comes)",
    )
    nodes.add_argument(
        "--address", metavar="HOST", help="by which the others reach this one (default: its name in the network)"
    )
    nodes.add_argument(
        "--join-timeout", metavar="SECONDS", default="600", help="how long to wait for the others (default: 600)"
    )
    parser.add_argument("program", metavar="RECIPE-or-SCRIPT.py", help="the recipe, or a file that ends in .py")
    parser.add_argument("words_of_program", nargs=argparse.REMAINDER, metavar="word", help="what it is given")
