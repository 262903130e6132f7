"""Interrupts adapters: where requests to stop come from."""
