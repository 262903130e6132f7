"""Devices that torch drives."""
