"""Callbacks are cheap to import."""

from __future__ import annotations

import subprocess
import sys


def test_callbacks_import_where_no_framework_can_be() -> None:
    """The package imports with torch, numpy, accelerate, transformers and tqdm unimportable."""
    blocked = ["torch", "numpy", "accelerate", "transformers", "tqdm"]
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import hexloop.app.callbacks"
    subprocess.run([sys.executable, "-c", program], check=True)
