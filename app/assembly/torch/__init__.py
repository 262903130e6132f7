"""Assembly of a run in torch. Its modules, and torch with them, are imported when they are first used."""

from typing import TYPE_CHECKING

import lazy_loader  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from hexloop.app.assembly.torch import accelerator as accelerator
    from hexloop.app.assembly.torch import batches as batches
    from hexloop.app.assembly.torch import data as data
    from hexloop.app.assembly.torch import losses as losses
    from hexloop.app.assembly.torch import model as model
    from hexloop.app.assembly.torch import tensors as tensors
else:
    __getattr__, __dir__, __all__ = lazy_loader.attach(
        __name__, submodules=["accelerator", "batches", "data", "losses", "model", "tensors"]
    )
