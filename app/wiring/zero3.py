"""`zero3_init`, which partitions a model over the processes while the user's script creates it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hexloop.app.arguments import TrainingArguments
from hexloop.app.engines import engine_for
from hexloop.app.joining import join


@contextmanager
def zero3_init(args: TrainingArguments) -> Iterator[None]:
    """Partition the parameters of every module over the processes as it is created, if ZeRO 3 is chosen.

    Every process draws the same weights as without it, those of one module at a time. Create transformers' models by
    `from_pretrained` or `from_config` in this context, because their own classes initialize weights once the whole
    model exists. If ZeRO 3 is not chosen, nothing happens. Collective. Raises ConfigurationError for an invalid
    DeepSpeed configuration.
    """
    with engine_for(args).sharded_init(args, partial(join, args)):
        yield
