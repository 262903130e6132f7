"""Torch's learning-rate schedulers: one that a user supplies, driven as it is, and the making of them by name."""

from hexloop.adapters.scheduler.torch.scheduler import TorchScheduler

__all__ = ["TorchScheduler"]
