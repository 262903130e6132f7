"""`hexloop checkpoints export`: a checkpoint of hexloop's becomes one of the reference library's."""

from __future__ import annotations

import argparse

from hexloop.app.command_line.exit_codes import ExitCode

HELP = "write a checkpoint as one that transformers' Trainer goes on from"

DESCRIPTION = """\
Writes a checkpoint as checkpoint-<step> in OUTPUT_DIR, in the files that transformers'
Trainer reads: it takes that folder for resume_from_checkpoint. This is the only place
where hexloop pickles anything, as that library reads it so."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder")
    parser.add_argument("--to", metavar="OUTPUT_DIR", required=True, help="the folder to write checkpoint-<step> in")


def run(options: argparse.Namespace) -> ExitCode:
    """Export, and say where it is."""
    from hexloop.app.foreign import export_checkpoint

    print(f"Written: {export_checkpoint(options.checkpoint, options.to)}")
    return ExitCode.DONE
