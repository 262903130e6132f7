"""What was chosen and has no effect in this run, as a table: said in the log, since scripts choose it all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import frozen

from hexloop.app.arguments import DebugOption, TrainingArguments
from hexloop.app.arguments.accelerator_config import AcceleratorConfig
from hexloop.app.arguments.introspection import default_of
from hexloop.app.engines import ENGINES
from hexloop.ports.engine import EngineRow

LOGGER = logging.getLogger("hexloop")


@frozen
class Remark:
    """When these arguments, other than at their defaults, have no effect, and why."""

    names: tuple[str, ...]
    when: Callable[[TrainingArguments], bool]
    because: str


def _unrequested(row: EngineRow[Any], args: TrainingArguments) -> bool:
    return not row.requested(args)


REMARKS = (
    Remark(
        (
            "local_rank",
            "ddp_backend",
            "ddp_timeout",
            "ddp_find_unused_parameters",
            "ddp_bucket_cap_mb",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
            "average_tokens_across_devices",
            "eval_use_gather_object",
        ),
        lambda args: args.world_size == 1,
        "it is about several processes, and this run has one",
    ),
    Remark(
        ("split_batches", "dispatch_batches", "even_batches"),
        lambda args: args.world_size == 1,
        "batches are shared among several processes, and this run has one",
    ),
    Remark(
        ("even_batches",),
        lambda args: args.world_size > 1,
        "every sample is taken once and every process takes as many steps, whatever the length of the data",
    ),
    Remark(
        ("gradient_accumulation_kwargs",),
        lambda args: not _heeded(args),
        "of its keys num_steps is heeded, and sync_each_batch where there are several processes",
    ),
    Remark(
        ("use_seedable_sampler",), lambda args: True, "the order of samples always follows from the seed and the epoch"
    ),
    Remark(("non_blocking",), lambda args: True, "batches in page-locked memory are always copied without waiting"),
    *(
        Remark(row.options, partial(_unrequested, row), f"it configures the engine {row.name}, which is not chosen")
        for row in ENGINES
        if row.options
    ),
    Remark(
        ("liger_kernel_config",),
        lambda args: not args.use_liger_kernel,
        "it is about liger-kernel, and use_liger_kernel is not given",
    ),
    Remark(
        (
            "hub_model_id",
            "hub_strategy",
            "hub_token",
            "hub_private_repo",
            "hub_always_push",
            "hub_revision",
        ),
        lambda args: not args.push_to_hub,
        "it is about publishing, and push_to_hub is not given",
    ),
    Remark(
        ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        lambda args: "trackio" not in (args.report_to or ()),
        "it is about trackio, which report_to does not name",
    ),
    Remark(
        ("optim_target_modules",),
        lambda args: not str(args.optim).startswith(("galore", "apollo")),
        "only the optimizers GaLore and APOLLO choose modules",
    ),
    Remark(
        ("debug",),
        lambda args: args.debug == [DebugOption.TPU_METRICS_DEBUG],
        "tpu_metrics_debug is about TPUs, which hexloop does not train on",
    ),
)


def _heeded(args: TrainingArguments) -> bool:
    """Whether every key of gradient_accumulation_kwargs does something."""
    config = args.accelerator_config
    given = config.gradient_accumulation_kwargs if isinstance(config, AcceleratorConfig) else None
    return set(given or {}) <= ({"num_steps"} | ({"sync_each_batch"} if args.world_size > 1 else set()))


def remarks(args: TrainingArguments) -> list[str]:
    """A sentence for each argument that was given and has no effect."""
    given = args.to_dict()
    defaults = {name: default_of(type(args), name) for name in given}
    accelerate = AcceleratorConfig().to_dict()
    given |= {name: getattr(args.accelerator_config, name) for name in accelerate}
    defaults |= accelerate
    return [
        f"You chose {name}={given[name]!r}, which has no effect here: {row.because}."
        for row in REMARKS
        if row.when(args)
        for name in row.names
        if given[name] != defaults[name] and not _hidden_nothing(args, name)
    ]


def say_what_has_no_effect(args: TrainingArguments) -> None:
    """Log `remarks`, at the level INFO, in the process that logs."""
    if args.should_log and LOGGER.isEnabledFor(logging.INFO):
        for sentence in remarks(args):
            LOGGER.info(sentence)


def _hidden_nothing(args: TrainingArguments, name: str) -> bool:
    return name == "hub_token" and args.hub_token is None
