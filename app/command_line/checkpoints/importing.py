"""`hexloop checkpoints import`: a checkpoint of the reference library becomes one of hexloop's."""

from __future__ import annotations

import argparse

from hexloop.app.command_line.exit_codes import ExitCode

HELP = "write a checkpoint of transformers' Trainer as one of hexloop's"

DESCRIPTION = """\
Writes what a checkpoint of transformers' Trainer (4 or 5) holds as a checkpoint of
hexloop's in OUTPUT_DIR, from which `hexloop train --resume` goes on.

The files are read as tensors, numbers and texts only: one that would run code when it
is loaded is refused. training_args.bin is never looked at: the arguments are yours to
give again, the same as before."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("folder", metavar="FOLDER", help="the checkpoint's folder")
    parser.add_argument("--to", metavar="OUTPUT_DIR", required=True, help="the folder to write checkpoint-<step> in")
    parser.add_argument(
        "--gradient-accumulation-steps", type=int, default=1, metavar="N", help="the run's, 1 if it did not accumulate"
    )
    parser.add_argument(
        "--train-batch-size", type=int, default=None, metavar="N", help="samples of a micro-batch, if no file says it"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="how many processes trained together")
    parser.add_argument("--seed", type=int, default=42, help="the run's seed")
    parser.add_argument("--data-seed", type=int, default=None, help="the run's data_seed; its seed if it had none")


def run(options: argparse.Namespace) -> ExitCode:
    """Import, and say how to go on."""
    from hexloop.app.foreign import import_checkpoint

    written = import_checkpoint(
        options.folder,
        options.to,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        processes=options.processes,
        seed=options.seed,
        data_seed=options.data_seed,
        train_batch_size=options.train_batch_size,
    )
    print(f"Written: {written}\nGo on from it with: hexloop train RECIPE --resume {written}")
    return ExitCode.DONE
