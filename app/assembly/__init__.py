"""The composition root: the only part of the app that chooses and constructs adapters."""
