"""The public names of `hexloop.testing`, and the packages that it does not need."""

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


def test_the_fakes_need_no_framework_and_no_test_tool() -> None:
    """Every fake can be imported without torch, numpy, accelerate, pytest and hypothesis."""
    result = subprocess.run([sys.executable, "-c", NEEDS_NOTHING], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_every_public_name_exists() -> None:
    """Each public name is listed once, in order, and is a class or function of that name."""
    names = hexloop.testing.__all__

    assert names == sorted(set(names))
    assert dir(hexloop.testing) == names
    for name in names:
        assert getattr(hexloop.testing, name).__name__ == name


def test_an_unknown_name_raises_attribute_error() -> None:
    """Unknown names raise AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="NoSuchContract"):
        _ = hexloop.testing.NoSuchContract  # type: ignore[attr-defined]
