"""torch's fully sharded data parallelism, both generations."""
