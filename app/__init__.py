"""The public API: Trainer, arguments, callbacks, recipes, command line, test kit, and the assembly of adapters."""
