"""The layout that `from_pretrained` of transformers loads: tensors as safetensors, everything else as JSON."""

from hexloop.adapters.contents.checkpoint.contents import CheckpointContents

__all__ = ["CheckpointContents"]
