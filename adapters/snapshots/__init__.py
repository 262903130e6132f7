"""Memory that keeps a run's state while the run goes on."""
