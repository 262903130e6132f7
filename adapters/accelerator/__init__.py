"""Libraries whose functions work on the processes and the device of a run: accelerate."""
