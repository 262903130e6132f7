"""DeepSpeed's environment: the configuration that accelerate's launcher chose, and the setup before an engine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hexloop.adapters.engines.arguments import is_on, lower_variable
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import read_json
from hexloop.domain.regular_files import read_file

if TYPE_CHECKING:
    import torch

SWITCH = "ACCELERATE_USE_DEEPSPEED"
FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
PREFIX = "ACCELERATE_DEEPSPEED_"


def launched_configuration() -> dict[str, Any] | None:
    """Return the launcher's configuration, None if it did not choose DeepSpeed; a file precedes single variables.

    Raises ConfigurationError for invalid values.
    """
    if not is_on(SWITCH):
        return None
    path = os.environ.get(FILE, "none")
    return _from_variables() if path in ("", "none") else _from_file(path)


def launched_value(path: str) -> object:
    """Return the value of an entry in the launcher's variables, which the configuration left to them."""
    found: object = _from_variables()
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _from_file(path: str) -> dict[str, Any]:
    try:
        found = read_json(read_file(path, "recipe_bytes"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"You set {FILE}={path!r}, but it cannot be read as JSON ({error}); name a JSON file, or unset it."
        ) from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"You set {FILE}={path!r}, but it holds no JSON object; name a file that does.")
    return found


def _from_variables() -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": _number(f"{PREFIX}ZERO_STAGE", 2)}
    for part in ("optimizer", "param"):
        name = f"{PREFIX}OFFLOAD_{part.upper()}"
        device = lower_variable(f"{name}_DEVICE", "none")
        zero[f"offload_{part}"] = {"device": device}
        if device == "nvme":
            zero[f"offload_{part}"]["nvme_path"] = os.environ.get(f"{name}_NVME_PATH")
    zero["stage3_gather_16bit_weights_on_model_save"] = is_on(f"{PREFIX}ZERO3_SAVE_16BIT_MODEL")
    return {
        "gradient_accumulation_steps": _number("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto"),
        "gradient_clipping": _number("ACCELERATE_GRADIENT_CLIPPING", "auto"),
        "zero_optimization": zero,
    }


def _number(name: str, unset: object) -> object:
    """Return the number in a variable, `unset` if it is not set or leaves the value to the arguments."""
    text = lower_variable(name, "")
    if text in ("", "none", "auto"):
        return unset
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError as error:
        raise ConfigurationError(
            f"You set the environment variable {name}={text!r}, but it takes a number; set one, or unset it."
        ) from error


def initialize(device: torch.device, local_rank: int) -> None:
    """Initialize DeepSpeed's communication, with the variables and the process group that it looks for."""
    import torch.distributed as dist

    os.environ.setdefault("LOCAL_RANK", local_rank_for(device, local_rank, os.environ))
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not dist.is_initialized():  # a run of one process needs no launcher and no port
        from torch._C._distributed_c10d import HashStore

        dist.init_process_group(dist.get_default_backend_for_device(device), store=HashStore(), rank=0, world_size=1)
    if device.type == "cpu":  # as DeepSpeed's launcher sets it; otherwise ZeRO 3 starts a program at every step
        os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE") or str(dist.get_world_size()))
    import deepspeed

    # DeepSpeed calls functions that torch renamed in 2.13, several times a step.
    warnings.filterwarnings("ignore", r"`torch.distributed.\w+_tensor` is deprecated", FutureWarning)
    # All-reduce over shared memory is for inference only. Building it takes a minute, and a process that dies meanwhile
    # leaves a lock that the others wait for forever.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


def local_rank_for(device: torch.device, local_rank: int, environment: Mapping[str, str]) -> str:
    """Return the LOCAL_RANK by which DeepSpeed selects this process's device."""
    if device.type == "cpu" or device.index is None or "OMPI_COMM_WORLD_LOCAL_RANK" in environment:
        return str(local_rank)  # Open MPI's variable and LOCAL_RANK have to agree
    return str(device.index)
