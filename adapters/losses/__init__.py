"""Adapters of the Losses port."""
