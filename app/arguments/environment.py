"""The environment variables that the arguments heed, by the names that the reference library and its launcher use."""

from __future__ import annotations

import os

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import parse_truth, shown

VARIABLES = {
    "ACCELERATE_USE_CPU": "trains on the processor, as use_cpu does",
    "ACCELERATE_TORCH_DEVICE": "names the device to train on, as torch spells it, unless use_cpu is given",
    "ACCELERATE_MIXED_PRECISION": "no, bf16 or fp16: the number format of training where the arguments give none",
    "ACCELERATE_DYNAMO_BACKEND": "compiles the model, as torch_compile_backend does, where the arguments do not",
    "ACCELERATE_DYNAMO_MODE": "what that compilation aims at, as torch_compile_mode",
    "TENSORBOARD_LOGGING_DIR": "the folder that report_to='tensorboard' writes to",
    "WORLD_SIZE": "how many processes a launcher has started",
    "RANK": "this process among all of them, from 0",
    "LOCAL_RANK": "this process among those of its machine, which says the GPU that it takes",
    "LOCAL_WORLD_SIZE": "how many processes run on this machine",
    "MASTER_ADDR": "where the processes meet: the machine of the one of rank 0",
    "MASTER_PORT": "the port there",
    "ACCELERATE_USE_DEEPSPEED": "turns DeepSpeed on, by the launcher's other variables, unless deepspeed is given",
    "ACCELERATE_USE_FSDP": "turns FSDP on, as fsdp does; the variables FSDP_... then say how, as `accelerate launch` "
    "sets them",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "turns several dimensions of devices on, which is refused, as "
    "parallelism_config is",
}
"""What each does."""


def is_on(name: str) -> bool:
    """The truth value of a variable, False where it is not set. Raises ConfigurationError where it is none."""
    value = os.environ.get(name, "").strip()
    truth = parse_truth(value or "false")
    if truth is None:
        raise ConfigurationError(
            [f"You set the environment variable {name}={shown(value)}, but it takes a truth value; set true or false."]
        )
    return truth


def word(name: str, unset: str) -> str:
    """The value of a variable in small letters; `unset` where it is not set, or empty."""
    return os.environ.get(name, "").strip().lower() or unset
