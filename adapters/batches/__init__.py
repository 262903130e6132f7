"""How one technology answers the port Batches."""
