"""What the last bits of a result may depend on besides the run's own state."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from hexloop.domain.checkpoints.reading import Checkpoint


def warn_of_differences(checkpoint: Checkpoint, environment: Mapping[str, str], world_size: int) -> None:
    """Say where what the checkpoint was written with and what there is now may give other last bits.

    One that says nothing of its surroundings, because another library wrote the run, is not warned of.
    """
    manifest = checkpoint.manifest
    if not manifest.environment:
        return
    then = {**manifest.environment, "processes": str(manifest.world_size)}
    now = {**environment, "processes": str(world_size)}
    differences = [
        f"{fact} was {then.get(fact, 'not known')} and is {now.get(fact, 'not known')}"
        for fact in sorted(then.keys() | now.keys())
        if then.get(fact) != now.get(fact)
    ]
    if differences:
        warnings.warn(
            f"The run that goes on from {checkpoint.name} may differ in its last bits from one that was never "
            f"interrupted: {'; '.join(differences)}.",
            stacklevel=4,
        )
