"""`hexloop.testing`: what it offers, and what it does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hexloop.testing

NEEDS_NOTHING = """
import sys
sys.modules.update(dict.fromkeys(["torch", "numpy", "accelerate", "pytest", "hypothesis", "safetensors", "xxhash"]))
from hexloop import testing
for name in testing.__all__:
    if not name.endswith("Contract"):
        getattr(testing, name)
"""


def test_the_fakes_need_neither_a_framework_nor_a_test_tool() -> None:
    """Every fake can be had where torch, numpy, accelerate, pytest and hypothesis cannot be imported."""
    result = subprocess.run([sys.executable, "-c", NEEDS_NOTHING], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_every_name_leads_somewhere() -> None:
    """Each public name is listed, once, in order, and leads to a class or function that goes by that name."""
    names = hexloop.testing.__all__

    assert names == sorted(set(names))
    assert dir(hexloop.testing) == names
    for name in names:
        assert getattr(hexloop.testing, name).__name__ == name


def test_what_is_not_there_is_not_there() -> None:
    """Another name raises AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="NoSuchContract"):
        _ = hexloop.testing.NoSuchContract  # type: ignore[attr-defined]
