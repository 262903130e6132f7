"""Two checkpoints side by side, of which never more than a tensor each is in memory."""

from hexloop.app.command_line.checkpoints.comparison.checkpoints import Comparison
from hexloop.app.command_line.checkpoints.comparison.contents import Contents, contents_of

__all__ = ["Comparison", "Contents", "contents_of"]
