"""What importing the arguments costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNWANTED = ("torch", "numpy", "accelerate", "transformers")


@pytest.mark.parametrize("code", ["", "TrainingArguments('out', bf16=True).set_save(steps=5).to_json_string()"])
def test_nothing_heavy_is_imported(code: str) -> None:
    """Importing the arguments, and making and changing some, imports neither torch nor anything else that is heavy."""
    program = f"from hexloop.app.arguments import TrainingArguments\n{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(UNWANTED) & set(done.stdout.split())
