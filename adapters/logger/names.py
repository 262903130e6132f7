"""The names and values of logs as trackers receive them."""

from __future__ import annotations

from collections.abc import Mapping

from hexloop.ports.logger import RunInformation, Value

SINGLE_VALUES = (
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos",
)  # fmt: skip
"""Values of a whole run: a summary, not a curve. Source: transformers 5, its callbacks for wandb and swanlab."""


def grouped(name: str) -> str:
    """Return the name of a value with its group in front: "eval/", "test/", or "train/" for the rest.

    Source: transformers 5, `rewrite_logs`.
    """
    for group in ("eval", "test"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    return f"train/{name}"


def numbers_of(values: Mapping[str, Value]) -> dict[str, float]:
    """Return the values that are numbers; booleans count as such, texts and None do not."""
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float)}


def flat(values: Mapping[str, object], separator: str = "/", prefix: str = "") -> dict[str, object]:
    """Return nested mappings as one, with names such as "optimizer/lr"."""
    flattened: dict[str, object] = {}
    for name, value in values.items():
        path = f"{prefix}{separator}{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, separator, path)
        else:
            flattened[path] = value
    return flattened


def parameters_of(run: RunInformation) -> dict[str, object]:
    """Return the arguments over the model's configuration, with the adapter's as `peft_config`."""
    combined = {**run.model_configuration, **run.configuration}
    if run.adapter_configuration:
        combined["peft_config"] = dict(run.adapter_configuration)
    return combined
