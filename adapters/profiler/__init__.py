"""Adapters that record what a process and its device do."""
