"""Answers the Collectives port with torch.distributed."""

from hexloop.adapters.collectives.torch.collectives import TorchCollectives

__all__ = ["TorchCollectives"]
