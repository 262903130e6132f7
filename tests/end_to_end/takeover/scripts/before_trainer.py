"""A script that uses accelerate's functions after it has made its arguments, and before it makes a Trainer."""

# A user's script, without types.
# mypy: ignore-errors

import logging

from accelerate.logging import get_logger
from accelerate.utils import gather_object
from transformers import HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
logging.basicConfig()
get_logger("before").warning("one line of all processes")
print(f"{Trainer.__module__.split('.')[0]} gathered {gather_object([arguments.process_index])}\n", end="", flush=True)
