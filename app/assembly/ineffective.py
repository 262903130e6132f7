"""Arguments that have no effect in a run, or with a framework."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import DebugOption
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.app.arguments.declaration import default_of
from hexloop.app.arguments.packing import own_value
from hexloop.app.assembly.framework import Framework
from hexloop.app.devices import runtime_report
from hexloop.app.engines import ENGINES
from hexloop.app.rules import OWN, TRANSFORMERS, rules_of
from hexloop.ports.engine import EngineRow

LOGGER = logging.getLogger("hexloop")


@frozen
class Ineffective:
    """Arguments that have no effect, if they are not at their defaults: when, and why."""

    names: tuple[str, ...]
    when: Callable[[TrainingArguments], bool]
    because: str
    level: int = logging.INFO


def _by_options() -> Mapping[tuple[str, ...], list[EngineRow[Any]]]:
    """Return the rows of engines that arguments configure, by these arguments."""
    found: dict[tuple[str, ...], list[EngineRow[Any]]] = {}
    for row in ENGINES:
        if row.options:
            found.setdefault(row.options, []).append(row)
    return found


def _unrequested(rows: Sequence[EngineRow[Any]], args: TrainingArguments) -> bool:
    return not any(row.requested(args) for row in rows)


INEFFECTIVE = (
    Ineffective(
        (
            "local_rank",
            "ddp_backend",
            "ddp_timeout",
            "rendezvous_timeout",
            "ddp_find_unused_parameters",
            "ddp_bucket_cap_mb",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
            "average_tokens_across_devices",
            "eval_use_gather_object",
            "split_batches",
            "dispatch_batches",
            "even_batches",
        ),
        lambda args: args.world_size == 1,
        "it is for runs with several processes, and this run has one",
    ),
    Ineffective(
        ("even_batches",),
        lambda args: args.world_size > 1 and rules_of(args) is OWN,
        "every sample is used once and every process takes the same number of steps, whatever the length of the data",
    ),
    Ineffective(
        ("gradient_accumulation_kwargs",),
        lambda args: not _all_used(args),
        "only its key num_steps is used, and sync_each_batch in runs with several processes",
    ),
    Ineffective(
        ("use_seedable_sampler",),
        lambda args: rules_of(args) is OWN,
        "the order of samples always follows from the seed and the epoch",
    ),
    Ineffective(
        ("non_blocking",),
        lambda args: rules_of(args) is OWN,
        "batches in pinned memory are always copied without waiting",
    ),
    *(
        Ineffective(
            options, partial(_unrequested, rows), f"it configures the engine {rows[-1].name}, which is not used"
        )
        for options, rows in _by_options().items()
    ),
    Ineffective(
        ("fp16",),
        lambda args: rules_of(args) is TRANSFORMERS and args.device.type == "cpu",
        "with reproduce='transformers' a CPU computes in fp32, as transformers does there",
    ),
    Ineffective(
        ("liger_kernel_config",),
        lambda args: not args.use_liger_kernel,
        "it is for liger-kernel, and use_liger_kernel is not set",
    ),
    Ineffective(
        (
            *("hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision"),
            "outbox_grace",
        ),
        lambda args: not args.push_to_hub,
        "it is for uploads to the Hub, and push_to_hub is not set",
    ),
    Ineffective(
        ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        lambda args: "trackio" not in (args.report_to or ()),
        "it is for trackio, which is not in report_to",
    ),
    Ineffective(
        ("optim_target_modules",),
        lambda args: not str(args.optim).startswith(("galore", "apollo")),
        "it is for the optimizers GaLore and APOLLO",
    ),
    Ineffective(
        ("packing_strategy",),
        lambda args: not (own_value(args, "packing") or own_value(args, "eval_packing")),
        "it is for packing, and packing is not set",
    ),
    Ineffective(
        ("debug",),
        lambda args: args.debug == [DebugOption.TPU_METRICS_DEBUG] and runtime_report(args.device_name) is None,
        "tpu_metrics_debug is for devices of XLA",
        logging.WARNING,  # as in transformers
    ),
)


def _all_used(args: TrainingArguments) -> bool:
    """Return whether every key of gradient_accumulation_kwargs has an effect."""
    given = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    return set(given) <= ({"num_steps"} | ({"sync_each_batch"} if args.world_size > 1 else set()))


def log_ineffective_arguments(args: TrainingArguments) -> None:
    """Log each argument that was given and has no effect, in the processes that log."""
    logs = args.should_log
    rows = [row for row in INEFFECTIVE if logs and LOGGER.isEnabledFor(row.level) and row.when(args)]
    if not rows:
        return
    given = args.to_dict()
    defaults = {name: default_of(type(args), name) for name in given}
    accelerate = AcceleratorConfig().to_dict()
    given |= {name: getattr(args.accelerator_config, name) for name in accelerate}
    defaults |= accelerate
    if args.hub_token is None:
        given["hub_token"] = None  # to_dict hides it, whether it is set or not
    for row in rows:
        for name in row.names:
            if given[name] != defaults[name]:
                LOGGER.log(row.level, "You chose %s=%r, which has no effect here: %s.", name, given[name], row.because)


# Frameworks

NEEDS = {
    "auto_find_batch_size": "kept_on_host",
    "capture_step": "compiled",
    "ema_decay": "averages",
    "chunked_loss": "patched",
    "packing": "packing",
    "padding_free": "packing",
    "tokens_per_batch": "packing",
    "compile_buckets": "buckets",
    "full_determinism": "flags",
    "include_num_input_tokens_seen": "counters",
    "label_smoothing_factor": "label_smoother",
    "log_token_accuracy": "patched",
    "loss_type": "patched",
    "neftune_noise_alpha": "patched",
    "reproduce": "begin",
    "tf32": "flags",
    "torch_compile": "compiled",
    "use_liger_kernel": "receive",
    "profile": "profiler",
}
"""The arguments that have an effect only by a method of the framework that is not abstract."""


def unanswered(framework: Framework[Any], args: TrainingArguments) -> list[str]:
    """Return a problem for each argument that the framework would ignore."""
    kind = type(framework)
    return [
        f"{name}={getattr(args, name)!r} has no effect with the framework {kind.__name__}, which does not define "
        f"{method}; leave the argument out."
        for name, method in NEEDS.items()
        if getattr(args, name) not in (None, False, 0, "no") and getattr(kind, method) is getattr(Framework, method)
    ]
