"""`hexloop checkpoints`: list, verify, show, compare, prune and convert checkpoints outside a run."""
