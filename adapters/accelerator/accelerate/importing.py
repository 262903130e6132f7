"""Calls a function once accelerate is imported, without importing it: a program may never use accelerate."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterImport:
    """A finder of modules that finds accelerate by the other finders, and calls a function once it is imported."""

    call: Callable[[], object]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "accelerate":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.call()

        loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


_AFTER_IMPORT = _AfterImport()


def when_imported(call: Callable[[], object]) -> None:
    """Call a function now if accelerate is imported, else as soon as it is; replaces a function that still waits."""
    if "accelerate" in sys.modules:
        call()
        return
    _AFTER_IMPORT.call = call
    if _AFTER_IMPORT not in sys.meta_path:
        sys.meta_path.insert(0, _AFTER_IMPORT)
