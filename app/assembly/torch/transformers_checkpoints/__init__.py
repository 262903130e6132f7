"""Import and export of transformers' checkpoints, used only where the user asks for it."""
