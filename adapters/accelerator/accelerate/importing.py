"""Calls a function once accelerate is imported, without importing it: a program may never use accelerate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterImport:
    """A finder of modules that finds accelerate by the finders behind it, and calls functions once it is imported.

    It waits until then: code that only looks whether accelerate is installed finds it, and imports nothing.
    calls: the functions by their subjects, in the order of the calls.
    """

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[], object]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "accelerate":
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in behind)
        spec = next((each for each in found if each is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._call()

        loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec

    def _call(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call()


_AFTER_IMPORT = _AfterImport()


def when_imported(subject: str, call: Callable[[], object]) -> None:
    """Call a function now if accelerate is imported, else as soon as it is, after those that already wait.

    subject: what the call is about; it replaces one about the same that still waits.
    """
    if "accelerate" in sys.modules:
        call()
        return
    _AFTER_IMPORT.calls.pop(subject, None)
    _AFTER_IMPORT.calls[subject] = call
    if _AFTER_IMPORT not in sys.meta_path:
        sys.meta_path.insert(0, _AFTER_IMPORT)
