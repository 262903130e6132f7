"""Imported by the server that forks the processes of tests, which then do not import it again.

What was imported is left out of garbage collections: with torch and transformers in memory each takes half a second,
and copies the memory that the processes share.
"""

from __future__ import annotations

import gc
from importlib import import_module

for name in ("hexloop.app.trainer.trainer", "hexloop.app.assembly.torch.framework", "torch._dynamo", "pytest"):
    import_module(name)
gc.collect()
gc.freeze()
