"""A wrong value of any argument of any release gives a message with argument, value, reason and fix."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.arguments.declaration import declarations
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments
from hexloop.domain.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")

TABLE = Path(__file__).parents[2] / "reference" / "arguments.tsv"

TRUTH = ("perhaps", "it takes a truth value; give true or false")
TEXT = (3, "it takes text; put it in quotes")
NOT_NEGATIVE = (-1, "it must be at least 0; give 0 or more")
AT_LEAST_ONE = (0, "it must be at least 1; give 1 or more")
BELOW_ONE = (1.0, "it must be at least 0 and less than 1; give a number in that range")
STEPS = (
    10.5,
    "values from 1 on are numbers of steps, which must be whole; give a whole number of steps, or a ratio of the run "
    "below 1",
)
SEED = (-1, "seeds range from 0 to 4294967295; give a seed in that range")
LEVEL = ("warn", "there is no such choice; did you mean 'warning'?")
PERIOD = ("best", "there is no such choice; choose 'no', 'steps' or 'epoch'")
MAPPING = ("no mapping", 'it takes a mapping; give one, or its JSON text such as {"name": 1}')
FILE = ("no/such.json", "it takes a mapping, or the path of a readable JSON file; name such a file")
NAMES = ("one", 'it takes a list; give one, or its JSON text such as ["name"]')
APEX = ("apx", "there is no such choice; did you mean 'apex'?")

WRONG: dict[str, tuple[Any, str]] = {
    "accelerator_config": ({"evn_batches": True}, "it has no key 'evn_batches'; did you mean even_batches?"),
    "activation_checkpointing_kwargs": MAPPING,
    "adam_beta1": BELOW_ONE,
    "adam_beta2": BELOW_ONE,
    "adam_epsilon": NOT_NEGATIVE,
    "data_seed": SEED,
    "dataloader_multiprocessing_context": ("thread", "there is no such choice; choose 'fork', 'spawn' or 'forkserver'"),
    "dataloader_num_workers": NOT_NEGATIVE,
    "dataloader_prefetch_factor": AT_LEAST_ONE,
    "ddp_backend": ("ncl", "there is no such choice; did you mean 'nccl'?"),
    "ddp_bucket_cap_mb": AT_LEAST_ONE,
    "ddp_timeout": AT_LEAST_ONE,
    "debug": ("overflow", "there is no such choice; did you mean 'underflow_overflow'?"),
    "deepspeed": FILE,
    "dispatch_batches": TRUTH,
    "eval_accumulation_steps": AT_LEAST_ONE,
    "eval_delay": NOT_NEGATIVE,
    "eval_steps": STEPS,
    "eval_strategy": PERIOD,
    "evaluation_strategy": PERIOD,
    "fp16_backend": APEX,
    "fp16_opt_level": ("O7", "there is no such choice; choose 'O0', 'O1', 'O2' or 'O3'"),
    "fsdp": ("ful_shard", "there is no such choice; did you mean 'full_shard'?"),
    "fsdp_config": FILE,
    "fsdp_min_num_params": ("many", "it takes a whole number; give one"),
    "generation_config": (
        3,
        "it takes a model's name, the path of a folder or file, or a GenerationConfig; give one of them",
    ),
    "generation_max_length": AT_LEAST_ONE,
    "generation_num_beams": AT_LEAST_ONE,
    "gradient_accumulation_steps": AT_LEAST_ONE,
    "gradient_checkpointing_kwargs": MAPPING,
    "half_precision_backend": APEX,
    "hub_strategy": ("every-save", "there is no such choice; did you mean 'every_save'?"),
    "include_for_metrics": (["input"], "there is no such choice; did you mean 'inputs'?"),
    "include_num_input_tokens_seen": ("some", "there is no such choice; choose 'all', 'non_padding' or 'no'"),
    "label_names": NAMES,
    "label_smoothing_factor": BELOW_ONE,
    "learning_rate": NOT_NEGATIVE,
    "liger_kernel_config": ({"rope": "perhaps"}, "it takes a truth value; give true or false"),
    "local_rank": (-2, "it must be at least -1; give -1 or more"),
    "log_level": LEVEL,
    "log_level_replica": LEVEL,
    "logging_steps": STEPS,
    "logging_strategy": PERIOD,
    "lr_scheduler_kwargs": ({"min_lr": math.nan}, "it must be finite; give a finite number"),
    "lr_scheduler_type": ("linera", "there is no such choice; did you mean 'linear'?"),
    "max_grad_norm": NOT_NEGATIVE,
    "max_steps": (0, "that yields zero training steps; give 1 or more, or -1 to use num_train_epochs"),
    "mp_parameters": (
        "partitions=2",
        "SageMaker's model parallelism is no longer supported; leave it out, and shard the model by fsdp or deepspeed",
    ),
    "neftune_noise_alpha": NOT_NEGATIVE,
    "num_train_epochs": NOT_NEGATIVE,
    "optim": ("sdg", "there is no such choice; did you mean 'sgd'?"),
    "optim_args": (
        "momentum",
        "'momentum' is not of the form name=value; write it as 'name=value, other=value'",
    ),
    "optim_target_modules": (3, NAMES[1]),
    "parallelism_config": (3, "it takes a ParallelismConfig of the package accelerate; give one, or leave it out"),
    "past_index": (-2, "it must be at least -1; give -1 or more"),
    "per_device_eval_batch_size": AT_LEAST_ONE,
    "per_device_train_batch_size": AT_LEAST_ONE,
    "per_gpu_eval_batch_size": (-1, AT_LEAST_ONE[1]),
    "per_gpu_train_batch_size": (-1, AT_LEAST_ONE[1]),
    "ray_scope": ("all", "hexloop does not support hyperparameter search with Ray; leave it out"),
    "report_to": (3, NAMES[1]),
    "save_steps": STEPS,
    "save_strategy": ("step", "there is no such choice; did you mean 'steps'?"),
    "save_total_limit": AT_LEAST_ONE,
    "seed": SEED,
    "sharded_ddp": ("zero_dp_4", "there is no such choice; did you mean 'zero_dp_3'?"),
    "torch_empty_cache_steps": AT_LEAST_ONE,
    "tpu_num_cores": (0, AT_LEAST_ONE[1]),
    "trackio_static_space_id": (True, "there is no such choice; choose 'False'"),
    "train_sampling_strategy": (
        "shuffled",
        "there is no such choice; choose 'random', 'sequential', 'group_by_length' or 'batch_rebalance'",
    ),
    "warmup_ratio": (1.5, "a ratio is between 0 and 1; give warmup_steps a number of steps, or a ratio below 1"),
    "warmup_steps": STEPS,
    "weight_decay": NOT_NEGATIVE,
    "xpu_backend": ("ncl", "there is no such choice; did you mean 'nccl'?"),
}
"""By name: a value, and the reason and the fix. Switches and free texts are added below."""


def names() -> list[str]:
    """Return the arguments in the table of transformers' releases."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [row["name"] for row in csv.DictReader(lines, delimiter="\t")]


def kind_of(name: str) -> Any:
    """Return the type of an argument's values."""
    return LEGACY_ARGUMENTS[name].kind if name in LEGACY_ARGUMENTS else declarations(Seq2SeqTrainingArguments)[name][1]


def wrong_value(name: str) -> tuple[Any, str]:
    """Return a wrong value from the table, or a default one for booleans and free text."""
    plain: dict[Any, tuple[Any, str]] = {bool: TRUTH, bool | None: TRUTH, str: TEXT, str | None: TEXT}
    return WRONG[name] if name in WRONG else plain[kind_of(name)]


@pytest.mark.parametrize("name", names())
def test_wrong_value_is_rejected_in_one_sentence(name: str) -> None:
    """The error names the argument, the value, the reason and the fix."""
    value, said = wrong_value(name)
    with pytest.raises(ConfigurationError) as caught:
        Seq2SeqTrainingArguments("out", **{name: value}) if name != "output_dir" else Seq2SeqTrainingArguments(value)
    stop = "" if said.endswith("?") else "."
    shown = "'<hidden>'" if name.endswith("_token") else repr(value)
    assert caught.value.problems == (f"You chose {name}={shown}, but {said}{stop}",)


def test_table_lists_only_arguments() -> None:
    """Every entry of the table is an argument of some release."""
    assert WRONG.keys() <= set(names())
