"""A torch module with its loss and its torch optimizer."""
