"""A folder on a disk of this machine."""

from hexloop.adapters.storage.local.storage import DIGESTS, LocalStorage

__all__ = ["DIGESTS", "LocalStorage"]
