"""Adapters of the Scheduler port."""
