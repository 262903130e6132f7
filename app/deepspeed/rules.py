"""What of DeepSpeed's configuration the arguments know, as tables: an entry, the argument, and its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.deepspeed.entries import AUTO, section_of
from hexloop.domain.wording import shown


@frozen
class Rule:
    """An entry that the arguments, or what is known of the run, speak for.

    completes: it is put in where its section is there without it. binds: another value is a contradiction.
    """

    path: str
    source: str
    value: Callable[[Any], Any]
    completes: bool = False
    binds: bool = True


def _full_batch(args: TrainingArguments) -> int:
    return args.world_size * args.train_batch_size * args.gradient_accumulation_steps


def _is_in(name: str) -> Callable[[TrainingArguments], bool]:
    """Whether the run computes, or at least evaluates, in the half format of this name."""
    return lambda args: args.mixed_precision == name or bool(getattr(args, f"{name}_full_eval"))


OF_ARGUMENTS = (
    Rule("train_micro_batch_size_per_gpu", "per_device_train_batch_size", lambda args: args.train_batch_size, True),
    Rule(
        "gradient_accumulation_steps",
        "gradient_accumulation_steps",
        lambda args: args.gradient_accumulation_steps,
        True,
    ),
    Rule(
        "train_batch_size",
        "the number of processes times per_device_train_batch_size times gradient_accumulation_steps",
        _full_batch,
        True,
    ),
    Rule("gradient_clipping", "max_grad_norm", lambda args: args.max_grad_norm, True),
    Rule("optimizer.params.lr", "learning_rate", lambda args: args.learning_rate, True),
    Rule("optimizer.params.betas", "adam_beta1 and adam_beta2", lambda args: [args.adam_beta1, args.adam_beta2]),
    Rule("optimizer.params.eps", "adam_epsilon", lambda args: args.adam_epsilon),
    Rule("optimizer.params.weight_decay", "weight_decay", lambda args: args.weight_decay),
    Rule("scheduler.params.warmup_min_lr", "nothing", lambda args: 0, binds=False),
    Rule("scheduler.params.warmup_max_lr", "learning_rate", lambda args: args.learning_rate),
    Rule("fp16.enabled", "fp16", _is_in("fp16"), True),
    Rule("bf16.enabled", "bf16", _is_in("bf16"), True),
    Rule("amp.enabled", "nothing", lambda args: False, binds=False),
    Rule("amp.opt_level", "nothing", lambda args: "O1", binds=False),
)
"""Known of the arguments (`TrainingArguments`)."""

OF_HIDDEN_SIZE = (
    Rule("zero_optimization.reduce_bucket_size", "the model", lambda size: size * size, binds=False),
    Rule(
        "zero_optimization.stage3_prefetch_bucket_size", "the model", lambda size: int(0.9 * size * size), binds=False
    ),
    Rule("zero_optimization.stage3_param_persistence_threshold", "the model", lambda size: 10 * size, binds=False),
)
"""Known of the size of the model's hidden states (int)."""


@frozen
class Length:
    """How long a run is, and of that its warm-up, in optimizer steps."""

    total: int
    warmup: int


OF_LENGTH = (
    Rule("scheduler.params.total_num_steps", "the steps of the run", lambda length: length.total),
    Rule("scheduler.params.warmup_num_steps", "warmup_steps", lambda length: max(1, length.warmup)),
)
"""Known of the `Length` of the run; a warm-up has at least one step in DeepSpeed."""


def fill(config: dict[str, Any], rules: tuple[Rule, ...], known: Any) -> Iterator[str]:
    """Put in what `known` says of the entries of `rules`; a sentence for each that says something else."""
    for rule in rules:
        section, name = section_of(config, rule.path)
        if section is None:
            continue
        said, value = section.get(name), rule.value(known)
        if said == AUTO or (said is None and rule.completes):
            section[name] = value
        elif rule.binds and said is not None and said != value:
            yield (
                f"You chose {rule.path}={shown(said)} in DeepSpeed's configuration, but {rule.source} is "
                f"{shown(value)}; set the former to 'auto', or both to the same."
            )
