"""Snapshots adapters: copies of the run state in host memory."""
