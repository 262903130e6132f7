"""`TrainingArguments`, and objects of any attrs class or dataclass from files and command lines, without torch."""

from hexloop.app.arguments.arguments import TrainingArguments

__all__ = ["TrainingArguments"]
