"""DeepSpeed's engine, and where its weights lie."""

from hexloop.adapters.parallelism.deepspeed.parallelism import DeepSpeed
from hexloop.adapters.parallelism.deepspeed.surroundings import begin, spreading

__all__ = ["DeepSpeed", "begin", "spreading"]
