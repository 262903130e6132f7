"""The import cost of the arguments."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNWANTED = ("torch", "numpy", "accelerate", "transformers")


@pytest.mark.parametrize("code", ["", "TrainingArguments('out', bf16=True).set_save(steps=5).to_json_string()"])
def test_no_heavy_imports(code: str) -> None:
    """Importing, building and changing arguments imports neither torch nor other heavy packages."""
    program = f"from hexloop.app.arguments import TrainingArguments\n{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(UNWANTED) & set(done.stdout.split())
