"""Learning-rate schedulers of torch: those that a user passes, and factories by name."""

from hexloop.adapters.scheduler.torch.scheduler import TorchScheduler

__all__ = ["TorchScheduler"]
