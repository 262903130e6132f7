"""A process of `hexloop why`: repeats steps of a run by a recipe that the user named, and records what they compute.

    python -m hexloop.app.command_line.replay REQUEST

REQUEST is a JSON file, written by `hexloop why`. Of the run's folder, only a verified checkpoint is read; the recorded
arguments that are applied are numbers and names of optimizers and schedules.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hexloop.app.assembly.passed_adapters import private_adapters
from hexloop.app.assembly.torch.replaying import RECORDED, record_steps
from hexloop.app.recipe import read_recipe
from hexloop.domain.errors import ConfigurationError, HexloopError
from hexloop.domain.why import document_of

CHOSEN = frozenset({"optim", "lr_scheduler_type", "loss_weighting", "on_nonfinite", "on_spike"})
"""The arguments with a name among known ones that are taken from what a run recorded."""

NEVER = frozenset(RECORDED) | {"deadline", "resume_from_checkpoint", "dataloader_num_workers"}
"""The arguments that a repetition has its own values of."""


def recorded_arguments(arguments: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those recorded arguments that are applied: numbers and truth values where the recipe has one, and names.

    What could lead to a file, a service or an import is left as the recipe has it.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in NEVER or name not in type(arguments).__dataclass_fields__:
            continue
        current = getattr(arguments, name)
        is_number = isinstance(value, int | float) and isinstance(current, int | float | type(None))
        is_choice = name in CHOSEN and isinstance(value, str) and value.replace("_", "").isalnum()
        if (is_number or is_choice) and getattr(current, "value", current) != value:
            found[name] = value
    return found


def repeat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the steps of a request compute, or the error that ended them."""
    try:
        recipe = read_recipe(request["recipe"], ("model", "train_dataset"), Namespace(), ())
        with tempfile.TemporaryDirectory(prefix="hexloop-why-") as folder:
            recipe.arguments.assign(**recorded_arguments(recipe.arguments, request["settings"]))
            recipe.arguments.assign(**{**RECORDED, "output_dir": folder})
            parts = [name for name in recipe.parts if name not in ("callbacks", "eval_dataset", "test_dataset")]
            made = {name: recipe.make(name) for name in parts}
            callbacks = recipe.make("callbacks") if "callbacks" in recipe.parts else None
            adapters = private_adapters({})
            trainer = recipe.trainer_class(args=recipe.arguments, callbacks=callbacks, **made, **adapters)
            recording = record_steps(trainer, request["checkpoint"], request["until"])
            return {"recording": document_of(recording)}
    except ConfigurationError as error:
        return {"error": str(error)}
    except HexloopError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(argv: Sequence[str]) -> int:
    """Carry out a request, and write its result beside it."""
    (path,) = argv
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    Path(request["result"]).write_text(json.dumps(repeat(request)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
