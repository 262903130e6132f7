"""Precision adapters."""
