"""hexloop: a training library built as ports and adapters.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that `import hexloop` takes
milliseconds.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import lazy_loader

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "domain")):
    # An editable install from a source tree without the links to the four folders: they are at the top of the tree.
    __path__.append(os.path.dirname(os.path.dirname(__path__[0])))

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    enabled = gc.isenabled()
    gc.disable()  # imports leave almost no garbage, but scanning what torch allocates takes 0.1 s
    try:
        return _load(name)
    finally:
        if enabled:
            gc.enable()
