"""Journal adapters: the record of what happened in a run."""
