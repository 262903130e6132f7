"""Assembly of a run in torch."""
