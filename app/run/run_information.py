"""Facts of a run: for its loggers, and for repeating it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.sharing import global_batch_size
from hexloop.app.run.command import command_of_process
from hexloop.domain.redaction import redact, redacted
from hexloop.domain.run import Run
from hexloop.ports.logger import RunInformation


def information_of(parts: TrainerParts, run: Run[Any, Any]) -> RunInformation:
    """Return the description of a run for its loggers, without secrets."""
    args, model, state = parts.args, parts.unwrapped_model, parts.state
    parameters, trained = parts.adapters.framework.parameter_counts(parts)
    adapters = parts.adapters.framework.weights(model).adapters
    live, trial, group = parts.live_trial, state.trial_name, str(args.run_name or args.output_dir)
    if live is not None:
        trial, group = live.label or live.name, live.group
    is_trial = state.is_hyper_param_search or trial is not None
    return RunInformation(
        name=redact(args.run_name or str(args.output_dir)),
        configuration=redacted(_json_like(args.to_dict())),
        folder=redact(parts.folder),
        total_steps=run.plan.total_steps,
        step=run.state.step,
        run=run.state.run,
        chosen_name=None if args.run_name is None else redact(args.run_name),
        model_configuration=redacted(_json_like(_configuration_of(getattr(model, "config", None)))),
        adapter_configuration=redacted(_json_like(_configuration_of(adapters))),
        parameters=parameters,
        trainable_parameters=trained,
        trial=trial,
        trial_parameters=_json_like(state.trial_params or {}),
        group=redact(group) if is_trial else None,
        model=model,
    )


def _configuration_of(config: Any) -> dict[str, Any]:
    """Return the configuration of a model, or of its PEFT adapters by name, as a dictionary."""
    if isinstance(config, Mapping):
        return {name: _configuration_of(each) or each for name, each in config.items()}
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else {}
    return found if isinstance(found, dict) else {}


def _json_like(value: Any) -> Any:
    """Return a value as JSON can hold it; what it cannot hold becomes text."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _json_like(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_like(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value).removeprefix("torch.")


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
        f"randomness: {seeds}, {steps}" + (f", the order of {parts.rules.name}" if parts.rules.name else ""),
        _order_of(parts),
        f"environment: {machine}, {device}, and the versions below",
    ]
    return [fact for fact in facts if fact]


def _order_of(parts: TrainerParts) -> str:
    """Return a digest of the order in which the first epoch reads the training data; "" if hexloop does not choose it.

    The same digest means the same samples in the same steps, if the data and the batch size are the same.
    """
    data = parts.train_dataset
    order = None if data is None else parts.adapters.framework.order_of(parts, data)
    if order is None:
        return ""
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
