"""Two storages in tiers: a fast one for saving, and a slow one that outlives it."""

from __future__ import annotations

from hexloop.adapters.storage.tiered.storage import TieredStorage

__all__ = ["TieredStorage"]
