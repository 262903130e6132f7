"""Reading pickled files of tensors as data, in a process of its own."""
