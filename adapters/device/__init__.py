"""Device adapters."""
