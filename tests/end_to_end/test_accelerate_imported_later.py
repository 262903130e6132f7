"""Accelerate's state is that of the run, also if accelerate is imported after the Trainer is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

START = """
import gc, importlib.util, sys, weakref
from pathlib import Path
from tests.end_to_end.small.trainers import arguments, small_trainer

folder, finders = Path(sys.argv[1]), list(sys.meta_path)
trainer = small_trainer(folder, bf16=True)
assert "accelerate" not in sys.modules
"""

SHOWN = """
from accelerate.state import AcceleratorState
assert AcceleratorState._shared_state["_mixed_precision"] == "bf16"
added = [finder for finder in sys.meta_path if finder not in finders]
assert not any(type(finder).__module__.startswith("hexloop.") for finder in added)
"""


def run(program: str, folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.matrix
def test_looking_for_accelerate_is_not_importing_it(tmp_path: Path) -> None:
    """Transformers looks whether accelerate is installed when it is imported; the state is shared at the import."""
    run(f"{START}\nassert importlib.util.find_spec('accelerate') is not None\n{SHOWN}", tmp_path)


@pytest.mark.matrix
def test_further_arguments_do_not_take_the_place_of_a_run(tmp_path: Path) -> None:
    """Arguments that are made after the Trainer leave accelerate with the precision of the run."""
    run(f"{START}\nother = arguments(folder / 'other')\n{SHOWN}", tmp_path)


@pytest.mark.matrix
def test_a_waiting_trainer_is_released(tmp_path: Path) -> None:
    """Waiting for the import keeps neither the Trainer nor its model alive."""
    released = """
found = weakref.ref(trainer), weakref.ref(trainer.model)
del trainer
gc.collect()
assert [each() for each in found] == [None, None]
import accelerate
"""
    run(START + released, tmp_path)
