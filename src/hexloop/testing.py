"""The test kit: fakes for every port, contract suites for adapters, and checks of exact resumes.

The fakes need only the standard library: no framework, disk or network. The contract suites, whose names end in
"Contract", need the extra `testing` (pytest, hypothesis). An adapter passes a suite by subclassing it with one fixture.
`testing.pyi` lists the names. Each is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

import hexloop

_load, __dir__, __all__ = lazy_loader.attach_stub("hexloop", __file__)


def __getattr__(name: str) -> Any:
    value = globals()[name] = _load(name)
    vars(hexloop).pop(name, None)  # lazy_loader caches the value on hexloop, which does not export it
    return value
