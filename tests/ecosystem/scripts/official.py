"""Steps that the scripts of the structure of transformers' examples share."""

import logging
import math
import os
import sys
import time
from dataclasses import dataclass, field
from itertools import chain

import datasets
import numpy as np
import transformers
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint, speed_metrics


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "A folder or the name of a pretrained model."})


@dataclass
class FileArguments:
    train_file: str = field(default=None, metadata={"help": "A file with the training data."})
    validation_file: str = field(default=None, metadata={"help": "A file with the validation data."})
    test_file: str | None = field(default=None, metadata={"help": "A file with the test data."})

    def files(self):
        """Return the files by the names of their splits."""
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: file for split, file in files.items() if file is not None}


def set_up(training_args, logger):
    """Write logs to the standard output, set their levels and the seed, and return the last checkpoint or None."""
    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    set_log_levels(training_args, logger)
    checkpoint = last_checkpoint(training_args)
    set_seed(training_args.seed)
    return checkpoint


def set_log_levels(training_args, logger):
    """Set the levels of the logs of a script, datasets and transformers."""
    log_level = training_args.get_process_log_level()
    logger.setLevel(log_level)
    datasets.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.set_verbosity(log_level)


def last_checkpoint(training_args):
    """Return the last checkpoint in the output folder, or None without one or without training."""
    if os.path.isdir(training_args.output_dir) and training_args.do_train:
        return get_last_checkpoint(training_args.output_dir)
    return None


def in_blocks(examples, size):
    """Return the tokens of all examples in blocks of a size; the rest is dropped."""
    joined = {name: list(chain(*examples[name])) for name in examples}
    length = len(joined[next(iter(examples))]) // size * size
    return {name: [values[i : i + size] for i in range(0, length, size)] for name, values in joined.items()}


def most_likely(logits, labels):
    """Return the most likely classes, which need less memory than the logits."""
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(dim=-1)


def decoded(tokenizer, tokens, **options):
    """Return the texts of tokens, in which -100 is padding."""
    tokens = np.where(tokens != -100, tokens, tokenizer.pad_token_id)
    return tokenizer.batch_decode(tokens, skip_special_tokens=True, **options)


def perplexity(loss):
    """Return the perplexity of a loss."""
    try:
        return math.exp(loss)
    except OverflowError:
        return float("inf")


def loop_without_metrics(trainer, loader, description, ignore_keys, prefix):
    """Return the output of the evaluation loop without `compute_metrics`, which a script calls with texts later."""
    compute_metrics, trainer.compute_metrics = trainer.compute_metrics, None
    start_time = time.time()
    try:
        output = trainer.evaluation_loop(
            loader,
            description=description,
            # The loop may not decide by the missing compute_metrics that only the loss is wanted.
            prediction_loss_only=True if compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=prefix,
        )
    finally:
        trainer.compute_metrics = compute_metrics
    if f"{prefix}_jit_compilation_time" in output.metrics:
        start_time += output.metrics[f"{prefix}_jit_compilation_time"]
    steps = math.ceil(output.num_samples / (trainer.args.eval_batch_size * trainer.args.world_size))
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))
    return output


def train(trainer, checkpoint, samples=None):
    """Train, from the checkpoint of the arguments or the given one, and save the model, the metrics and the state."""
    result = trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or checkpoint)
    trainer.save_model()  # saves the tokenizer too
    report(trainer, "train", result.metrics, samples)
    trainer.save_state()


def report(trainer, split, metrics, samples=None):
    """Log and save the metrics of a split, with the number of its samples if it is known."""
    if samples is not None:
        metrics[f"{split}_samples"] = samples
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)


def publish(trainer, **description):
    """Push the model to the Hub if the arguments say so; otherwise, write its card."""
    if trainer.args.push_to_hub:
        trainer.push_to_hub(**description)
    else:
        trainer.create_model_card(**description)
