"""Collectives over torch.distributed."""

from hexloop.adapters.collectives.torch.collectives import TorchCollectives

__all__ = ["TorchCollectives"]
