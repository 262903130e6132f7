"""Training in 8 bits: the adapter of the package that a recipe names, and what such a run needs."""

from __future__ import annotations

import logging
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.formats import TORCHAO, TRANSFORMER_ENGINE, Fp8Recipe
from hexloop.ports.device import Device, DeviceCapabilities
from hexloop.ports.learner import Precision

LOGGER = logging.getLogger("hexloop")

INSTALL = {
    TORCHAO: "{install[fp8]}",
    TRANSFORMER_ENGINE: "run `pip install 'transformer-engine[pytorch]'`, or choose fp8='torchao'",
}
"""How to get the package of each back end."""


def make_fp8(recipe: Fp8Recipe, device: Device, logs: bool, shards: bool) -> Precision[Any]:
    """Return the adapter of a recipe for a device; it imports its package when it converts a model.

    logs: whether this process logs warnings. shards: whether the engine shards the weights.
    """
    kind = device.name.partition(":")[0]
    if recipe.backend == TRANSFORMER_ENGINE:
        from hexloop.adapters.precision.transformer_engine import TransformerEnginePrecision

        if logs:
            LOGGER.warning(
                "Checkpoints do not contain the maxima from which Transformer Engine computes its scales: a run that "
                "resumes is not bit-identical to one that was not interrupted, as it would be with fp8='torchao'."
            )
        return TransformerEnginePrecision(kind, recipe.options)
    from hexloop.adapters.precision.torchao import TorchaoPrecision

    asked = recipe.options.get("emulate")
    emulates = "fp8" in device.capabilities.emulates if asked is None else asked
    if emulates and asked is None and logs:
        LOGGER.warning(
            "fp8 is emulated on the device %s: the results are those of fp8, but it is slower than bf16. To train so "
            "without this warning, set fp8={'backend': 'torchao', 'emulate': True}.",
            device.name,
        )
    return TorchaoPrecision(kind, recipe.options, emulates, shards)


def recipe_in_use(args: TrainingArguments, precision: str) -> Fp8Recipe | None:
    """Return how a run with this precision trains in fp8; None if it does not, or if the adapter was passed."""
    return args.fp8_recipe if precision == "fp8" else None


def is_missing(recipe: Fp8Recipe | None, backend: str) -> bool:
    """Return whether a recipe needs the package of this back end, and it is not installed."""
    return recipe is not None and recipe.backend == backend and not recipe.is_installed


def is_computed(recipe: Fp8Recipe | None, device: DeviceCapabilities) -> bool:
    """Return whether a device computes what a recipe asks for, by products of 8 bits or by emulation.

    recipe: None if the adapter was passed, which may emulate.
    """
    if "fp8" in device.precisions:
        return True
    if recipe is None:
        return "fp8" in device.emulates
    if recipe.backend != TORCHAO:
        return False
    asked = recipe.options.get("emulate")
    in_config = bool(getattr(recipe.options.get("config"), "emulate", False))
    return in_config or ("fp8" in device.emulates if asked is None else asked)
