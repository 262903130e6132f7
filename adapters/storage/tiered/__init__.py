"""A fast storage in front of a slow one: what is saved is sent on behind the run's back."""

from __future__ import annotations

from hexloop.adapters.storage.tiered.storage import TieredStorage

__all__ = ["TieredStorage"]
