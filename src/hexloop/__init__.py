"""hexloop: a training library built as ports and adapters.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that `import hexloop` takes
milliseconds.
"""

from __future__ import annotations

import gc
from typing import Any

import lazy_loader

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    enabled = gc.isenabled()
    gc.disable()  # imports leave almost no garbage, but scanning what torch allocates takes 0.1 s
    try:
        return _load(name)
    finally:
        if enabled:
            gc.enable()
