"""Adapters of the Background port."""
