"""What the arguments say about how processes share batches, and how large a batch of all of them is."""

from __future__ import annotations

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.mesh import Place


def global_batch_size(args: TrainingArguments, ranks: Place, batch_size: int) -> int:
    """Return the samples of a micro-batch of all processes together.

    ranks: the processes that read different samples. batch_size: of each of them, or with `split_batches` of all.
    Raises ConfigurationError if it cannot be split.
    """
    if not sharing_settings(args).split_batches:
        return batch_size * ranks.size
    if batch_size % ranks.size:
        raise ConfigurationError(
            f"split_batches=True in accelerator_config cannot split batches of {batch_size} evenly among "
            f"{ranks.size} processes; choose per_device_train_batch_size and per_device_eval_batch_size among "
            f"the multiples of {ranks.size}."
        )
    return batch_size


def splits(args: TrainingArguments, ranks: Place) -> bool:
    """Return whether the processes split each batch, instead of having one each."""
    return ranks.size > 1 and sharing_settings(args).split_batches


def dispatches(args: TrainingArguments, ranks: Place) -> bool:
    """Return whether rank 0 reads for all."""
    return ranks.size > 1 and bool(sharing_settings(args).dispatch_batches)


def sharing_settings(args: TrainingArguments) -> AcceleratorConfig:
    """Return `accelerator_config`, with its defaults if there is none."""
    config = args.accelerator_config
    return config if isinstance(config, AcceleratorConfig) else AcceleratorConfig()


def data_seed(args: TrainingArguments) -> int:
    """Return the seed of the order of the samples."""
    return args.seed if args.data_seed is None else args.data_seed
