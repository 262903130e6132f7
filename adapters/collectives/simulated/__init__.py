"""A world of ranks in one process, which can delay, lose and kill them."""
