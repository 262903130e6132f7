"""Logger adapters: where the metrics of a run go."""
