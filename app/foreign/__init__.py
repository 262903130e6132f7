"""Checkpoints of the reference library: read and written where that is asked for by name, and nowhere else."""

from hexloop.app.foreign.exporting import export_checkpoint
from hexloop.app.foreign.importing import import_checkpoint

__all__ = ["export_checkpoint", "import_checkpoint"]
