"""Where chance comes from."""

from __future__ import annotations

from hexloop.app.arguments.checks import seed as valid_seed
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


@argument_group
class Reproducibility(Arguments):
    """Randomness."""

    seed: int = argument(
        default=42, checks=(valid_seed,), help="seed of every random generator, set as training begins"
    )
    data_seed: int | None = argument(
        default=None, checks=(valid_seed,), help="seed of the order of samples; as seed if not given"
    )
    full_determinism: bool = argument(
        default=False, help="use only kernels that give the same bits each time, which may be slower"
    )
