"""The public API: Trainer, arguments, callbacks, recipes, command line, test kit, and the wiring of adapters."""
