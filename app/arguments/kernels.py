"""Other implementations of a model's layers."""

from __future__ import annotations

from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


@argument_group
class Kernels(Arguments):
    """Kernels."""

    use_liger_kernel: bool = argument(
        default=False,
        help="replace layers of a transformers model by the liger-kernel package's, which take less memory",
    )
    liger_kernel_config: dict[str, bool] | None = argument(
        default=None,
        help='which layers are replaced, such as {"rope": true}; those that liger-kernel chooses if not given',
    )
