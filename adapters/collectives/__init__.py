"""Collectives adapters: communication between the processes of a run."""
