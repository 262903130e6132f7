"""The configuration that `accelerate launch --use_deepspeed` puts into the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from hexloop.app.environment import is_on, lower_variable
from hexloop.domain.errors import ConfigurationError

SWITCH = "ACCELERATE_USE_DEEPSPEED"
FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
PREFIX = "ACCELERATE_DEEPSPEED_"


def launched_configuration() -> dict[str, Any] | None:
    """What the launcher chose, None where it did not choose DeepSpeed; a file of its own comes before single values.

    Raises ConfigurationError where a variable makes no sense.
    """
    if not is_on(SWITCH):
        return None
    path = os.environ.get(FILE, "none")
    return _of_variables() if path in ("", "none") else _of_file(path)


def launched_value(path: str) -> object:
    """What the launcher's variables say of an entry that the configuration leaves to them."""
    found: object = _of_variables()
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _of_file(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            [f"You set {FILE}={path!r}, but it cannot be read as JSON ({error}); name such a file, or unset it."]
        ) from error
    if not isinstance(found, dict):
        raise ConfigurationError([f"You set {FILE}={path!r}, but it holds no JSON object; name a file that does."])
    return found


def _of_variables() -> dict[str, Any]:
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
    """A number, or `unset` where the variable is not set or says that the arguments decide."""
    text = lower_variable(name, "")
    if text in ("", "none", "auto"):
        return unset
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError as error:
        raise ConfigurationError(
            [f"You set the environment variable {name}={text!r}, but it takes a number; set one, or unset it."]
        ) from error
