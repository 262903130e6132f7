"""The training loop and everything it decides: schedules, triggers, sample order, checkpoints. Plain Python."""
