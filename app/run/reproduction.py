"""How a run can be repeated, for its model card: the command, the order of the data and the environment."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import sys
from array import array

from hexloop.app.run.command import command_of_process
from hexloop.app.wiring.data import global_batch_size, is_iterable, training_order
from hexloop.app.wiring.parts import TrainerParts

MOST_SAMPLES = 1 << 20
"""Samples of the first epoch whose order is in the digest, so that a card of a large data set is written at once."""


def reproduction_of(parts: TrainerParts) -> list[str]:
    """Return what is needed to repeat the run and get the same weights, a fact a line."""
    args = parts.args
    steps = f"{global_batch_size(args, parts.adapters.mesh.data, parts.train_batch_size)} samples a batch"
    if args.gradient_accumulation_steps > 1:
        steps += f", {args.gradient_accumulation_steps} batches a step"
    seeds = f"seed {args.seed}" if args.data_seed is None else f"seed {args.seed}, data seed {args.data_seed}"
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    device = f"device {parts.adapters.device.name}, precision {parts.adapters.precision.name}"
    command = _without_folders(command_of_process(sys.orig_argv, os.environ))
    facts = [
        f"command: `{command}`" if command else "",
        "arguments: `training_args.json`",
        f"randomness: {seeds}, {steps}" + (f", the order of {args.reproduce}" if args.reproduce else ""),
        _order_of(parts),
        f"environment: {machine}, {device}, and the versions below",
    ]
    return [fact for fact in facts if fact]


def _order_of(parts: TrainerParts) -> str:
    """Return a digest of the order in which the first epoch reads the training data; "" if hexloop does not choose it.

    The same digest means the same samples in the same steps, if the data and the batch size are the same.
    """
    data = parts.train_dataset
    if data is None or parts.args.reproduce or is_iterable(data) or not hasattr(data, "__len__") or not len(data):
        return ""
    order = training_order(parts, data, 0)
    samples = min(len(order), MOST_SAMPLES)
    indices = array("q", order.block(0, samples))
    if sys.byteorder == "big":
        indices.byteswap()
    digest = hashlib.blake2b(indices.tobytes(), digest_size=16).hexdigest()
    part = "" if samples == len(order) else f", of which the first {samples:,} are in the digest"
    return f"order of the first epoch: `blake2b:{digest}` ({len(order):,} samples{part})"


def _without_folders(command: str) -> str:
    """Return a command with the names of files alone where it has absolute paths, which tell who ran it where."""
    try:
        words = shlex.split(command)
    except ValueError:  # it was cut
        return ""
    return " ".join(shlex.quote(_last_name(word)) for word in words).replace("`", "'")


def _last_name(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and os.path.isabs(value):
        return f"{option}={os.path.basename(value)}"
    return os.path.basename(word) if os.path.isabs(word) else word
