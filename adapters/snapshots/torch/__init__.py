"""Copies of tensors in host memory."""

from hexloop.adapters.snapshots.torch.snapshots import TorchSnapshots

__all__ = ["TorchSnapshots"]
