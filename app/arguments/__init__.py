"""`TrainingArguments`, and objects of any attrs class or dataclass from files and command lines.

Importing it does not import torch.
"""

from hexloop.app.arguments.arguments import TrainingArguments

__all__ = ["TrainingArguments"]
