"""Devices that PyTorch drives."""
