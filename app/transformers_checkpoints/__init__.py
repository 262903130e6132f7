"""Import and export of transformers' checkpoints, used only where the user asks for it."""

from hexloop.app.transformers_checkpoints.exporting import export_checkpoint
from hexloop.app.transformers_checkpoints.importing import import_checkpoint

__all__ = ["export_checkpoint", "import_checkpoint"]
