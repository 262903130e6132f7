"""Accelerators and states of accelerate that users configure themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator as RealAccelerator
from accelerate.state import AcceleratorState

from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.trainers import small_trainer


def test_a_configured_state_is_used_and_must_match(tmp_path: Path) -> None:
    """use_configured_state takes the state that exists, and refuses a missing or a different one."""
    configured: dict[str, Any] = {"accelerator_config": {"use_configured_state": True}}
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ConfigurationError, match="there is none"):
        small_trainer(tmp_path, **configured)
    state = RealAccelerator(cpu=True).state
    trainer = small_trainer(tmp_path, **configured)
    assert vars(trainer.accelerator.state) is vars(state)
    trainer.train()
    with pytest.raises(ConfigurationError, match="bf16"):
        small_trainer(tmp_path, **configured, bf16=True)


def test_an_assigned_accelerator_is_used_and_must_match(tmp_path: Path) -> None:
    """An assigned Accelerator becomes the real one; one with another precision is refused."""
    trainer, own = small_trainer(tmp_path), RealAccelerator(cpu=True, mixed_precision="no")
    trainer.accelerator = own
    assert trainer.accelerator.real is own
    trainer.train()
    AcceleratorState._reset_state(reset_partial_state=True)
    half = RealAccelerator(cpu=True, mixed_precision="bf16")
    with pytest.raises(ConfigurationError, match="mixed precision"):
        trainer.accelerator = half
    assert trainer.accelerator.real is own
