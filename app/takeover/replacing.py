"""`takeover`: hexloop's classes in place of transformers' Trainer family, for code that imports transformers.

The names are replaced where they are read: a module of transformers gets a class of its own, whose properties return
hexloop's objects. Its contents stay as they are. transformers' own code, which reads its global variables, therefore
keeps its own classes, and at the end there is nothing to put back but the class of each module.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import wraps
from importlib import metadata
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from types import ModuleType, TracebackType
from typing import Any, Self

import hexloop
from hexloop.app.joining import share_accelerate_state
from hexloop.app.notices import TRANSFORMERS, put_in_force
from hexloop.app.takeover.names import (
    FAMILY_NAMES,
    FORMER,
    HOLDERS,
    PACKAGE,
    TESTED,
    TRACKERS,
    is_tested,
    module_name,
    relative_name,
)

_HOLDERS = frozenset(map(module_name, HOLDERS))
_REPLACES_PACKAGE = module_name("processing_utils")
"""The module of transformers that executes the package a second time and puts the result in `sys.modules`."""

_UNSET = object()
_MOST_LISTED = 10

SPAWNED = "HEXLOOP_SPAWNED_PROGRAM"
"""The environment variable with the main program of a process that was spawned during a takeover."""

Undo = Callable[[], object]


def _is_of(name: object, *packages: str) -> bool:
    """Return whether a module's name is in one of the packages."""
    return isinstance(name, str) and name.partition(".")[0] in packages


def _has_original(module: ModuleType, name: str, former: Sequence[str] = ()) -> bool:
    """Return whether `module` has transformers' own object of that name, or would import it when it is read.

    former: names that it had in earlier releases.
    """
    if name in former and name not in vars(module):
        return True
    if name in vars(module):
        return _is_of(getattr(vars(module)[name], "__module__", None), PACKAGE)
    return hasattr(type(module), "__getattr__") and name in vars(module).get("__all__", ())


class Replaced:
    """A property of a module: hexloop's object of a name, or transformers' for code of transformers and of hexloop.

    An object that other code assigns, as a test's monkeypatch does, comes first until either of the two is assigned.
    """

    def __init__(self, name: str) -> None:
        self.name, self.assigned = name, _UNSET

    def __get__(self, module: ModuleType, owner: type) -> Any:
        if _is_of(sys._getframe(1).f_globals.get("__name__"), PACKAGE, "hexloop"):
            if self.name in vars(module):
                return vars(module)[self.name]
            return owner.__getattr__(module, self.name)  # type: ignore[attr-defined]  # lazy: it is imported now
        return getattr(hexloop, self.name) if self.assigned is _UNSET else self.assigned

    def __set__(self, module: ModuleType, value: object) -> None:
        if _is_of(sys._getframe(1).f_globals.get("__name__"), PACKAGE):
            vars(module)[self.name] = value
        elif value is getattr(hexloop, self.name) or value is vars(module).get(self.name):
            self.assigned = _UNSET
        else:
            self.assigned = value

    def __delete__(self, module: ModuleType) -> None:
        self.assigned = _UNSET


def _replace_names(module: ModuleType) -> Undo:
    """Make the names of the family that `module` has hexloop's, and return what undoes it."""
    base = type(module)
    former = FORMER.get(relative_name(module.__name__), ())
    properties = {name: Replaced(name) for name in (*FAMILY_NAMES, *former) if _has_original(module, name, former)}
    if not properties:
        return lambda: None
    # A module class with __getattr__ is one whose attributes Python never reads past the properties.
    members: dict[str, Any] = dict(properties)
    if not hasattr(base, "__getattr__"):
        members["__getattr__"] = _missing_attribute
    module.__class__ = type(base.__name__, (base,), members)

    def undo() -> None:
        module.__class__ = base
        vars(module).update({name: each.assigned for name, each in properties.items() if each.assigned is not _UNSET})

    return undo


def _missing_attribute(module: ModuleType, name: str) -> Any:
    """Look up an attribute that a module does not have in its own function `__getattr__`, as Python does."""
    own = vars(module).get("__getattr__")
    if own is None:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    return own(name)


def _rebase_trackers(module: ModuleType) -> Undo:
    """Derive transformers' callbacks for trackers from hexloop's TrainerCallback; return what undoes it.

    They then are callbacks for `isinstance`, and the events that they do not override cost nothing.
    """
    base = vars(sys.modules[module_name("trainer_callback")])["TrainerCallback"]
    derived = [cls for cls in vars(module).values() if isinstance(cls, type) and base in cls.__bases__]
    before = [(cls, cls.__bases__) for cls in derived]
    for cls, bases in before:
        cls.__bases__ = tuple(hexloop.TrainerCallback if each is base else each for each in bases)

    def undo() -> None:
        for cls, bases in before:
            cls.__bases__ = bases

    return undo


class _Replacement:
    """What one takeover, or several nested ones, have changed; as a finder, it changes modules once they are imported.

    A module's loader is not replaced: only its `exec_module` is, until it has run.
    """

    def __init__(self) -> None:
        self._undo: list[Undo] = []
        self._changed: list[ModuleType] = []

    def start(self) -> None:
        """Change the modules that have been imported, and each other one when it is."""
        self._undo.append(put_in_force(TRANSFORMERS))
        self._undo.append(call_before(hexloop.TrainingArguments, "__post_init__", _set_reproduce))
        self._undo.append(call_after(hexloop.TrainingArguments, "__post_init__", _join_early))
        self._undo.append(_store_refused_values())
        self._undo.append(_take_over_spawned_processes())
        sys.meta_path.insert(0, self)
        for module in _imported_modules():
            self.change(module)

    def stop(self) -> None:
        """Undo everything."""
        sys.meta_path.remove(self)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._changed.clear()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module to change, as the other finders return it."""
        if fullname not in _HOLDERS and fullname != _REPLACES_PACKAGE:
            return None
        found = (each.find_spec(fullname, path, target) for each in sys.meta_path if each is not self)
        spec = next((each for each in found if each is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                loader.exec_module = execute
                execute(module)
                if self in sys.meta_path:
                    self.change(sys.modules[fullname])
                    self.change(sys.modules[PACKAGE])

            loader.exec_module = execute_and_change
        return spec

    def change(self, module: ModuleType) -> None:
        """Change a module that has been imported, unless it is changed already."""
        if module not in self._changed:
            self._changed.append(module)
            self._undo.append(_replace_names(module))
        if module.__name__ == module_name(TRACKERS):
            self._undo.append(_rebase_trackers(module))


def _imported_modules() -> list[ModuleType]:
    """Return the modules of transformers whose names are replaced and that have been imported.

    There may be two of a name: transformers, while it is imported, puts a second package of its name in `sys.modules`.
    """
    if PACKAGE not in sys.modules:
        return []
    return [each for each in _all_objects() if issubclass(type(each), ModuleType) and _is_holder(each)]


def _all_objects() -> list[Any]:
    """Return what Python's garbage collector tracks, with what the program has frozen, which stays frozen."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    found = gc.get_objects()
    gc.freeze()
    return found


def _is_holder(module: ModuleType) -> bool:
    name = vars(module).get("__name__")
    return isinstance(name, str) and name in _HOLDERS


class Takeover:
    """A takeover that has started; `restore`, or the end of a `with` block, ends it.

    Args:
        reproduce: follow transformers also where hexloop does better.
    """

    def __init__(self, reproduce: str | None) -> None:
        self.reproduce = reproduce

    def restore(self) -> None:
        """End this takeover. The last of several that ends puts transformers' own names back. May be repeated."""
        with _lock:
            if self in _live:
                _live.remove(self)
                if not _live:
                    _replacement.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()


_lock = threading.RLock()
_live: list[Takeover] = []
_replacement = _Replacement()


def takeover(reproduce: str | None = None) -> Takeover:
    """Put hexloop's classes in place of transformers' Trainer family, in this process, until it is restored.

    Modules of transformers that have been imported are changed now, others when they are imported. Takeovers may be
    nested. Use it as a function, at the top of a script or notebook, or as a context manager:

        with hexloop.takeover():
            import my_script

    Warns of modules that have already imported one of the classes, which they keep, and of a release of transformers
    outside the tested range. Training arguments refuse an invalid `reproduce` when they are made.

    Args:
        reproduce: the value of the argument of that name where training arguments do not set it.
    """
    with _lock:
        started = Takeover(reproduce)
        if not _live:
            _warn_of_release()
            _warn_of_importers()
            _replacement.start()
        _live.append(started)
    return started


def call_before(cls: type, method: str, first: Callable[[Any], object]) -> Undo:
    """Call `first` with the object before each call of a class's method; return what undoes it."""
    inherited = method not in vars(cls)
    original = getattr(cls, method)

    @wraps(original)
    def both(self: Any, *values: Any, **named: Any) -> Any:
        first(self)
        return original(self, *values, **named)

    setattr(cls, method, both)
    return lambda: delattr(cls, method) if inherited else setattr(cls, method, original)


def call_after(cls: type, method: str, then: Callable[[Any], object]) -> Undo:
    """Call `then` with the object after each call of a class's method; return what undoes it."""
    inherited = method not in vars(cls)
    original = getattr(cls, method)

    @wraps(original)
    def both(self: Any, *values: Any, **named: Any) -> Any:
        result = original(self, *values, **named)
        then(self)
        return result

    setattr(cls, method, both)
    return lambda: delattr(cls, method) if inherited else setattr(cls, method, original)


def _join_early(arguments: Any) -> None:
    """Let the processes of a launch meet when training arguments are made, as transformers does.

    Libraries and scripts call functions of accelerate between the arguments and the Trainer.
    """
    configured = getattr(arguments.accelerator_config, "use_configured_state", False)
    if arguments.distributed_environment.world_size > 1 and not configured:
        share_accelerate_state(arguments)


def _store_refused_values() -> Undo:
    """Let training arguments store what they refuse on assignment, until training starts; return what undoes it.

    transformers stores every value, and programs set an argument to None for a moment, as when they print the others.
    """
    hexloop.TrainingArguments.stores_refused = True
    return lambda: setattr(hexloop.TrainingArguments, "stores_refused", False)


def _set_reproduce(arguments: Any) -> None:
    """Let training arguments take `reproduce` from the takeover."""
    chosen = _reproduce()
    if chosen is not None and arguments.reproduce is None:
        arguments.reproduce = chosen


def _reproduce() -> str | None:
    """Return the value of the innermost takeover that has one."""
    return next((each.reproduce for each in reversed(_live) if each.reproduce is not None), None)


def _take_over_spawned_processes() -> Undo:
    """Let processes that `multiprocessing` spawns start with a takeover; return what undoes it."""
    original = spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        path, module = data.pop("init_main_from_path", None), data.pop("init_main_from_name", None)
        if path is not None or module is not None:
            os.environ[SPAWNED] = json.dumps({"path": path, "module": module, "reproduce": _reproduce()})
            data["init_main_from_name"] = "hexloop.app.takeover.spawned"
        return data

    spawn.get_preparation_data = prepare

    def undo() -> None:
        spawn.get_preparation_data = original
        os.environ.pop(SPAWNED, None)

    return undo


def _warn_of_release() -> None:
    try:
        installed = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return
    if not is_tested(installed):
        first, last = (".".join(map(str, release)) for release in TESTED)
        warnings.warn(
            f"transformers {installed} is installed, but hexloop's takeover is tested with {first} to {last}; install "
            "one of these if something fails.",
            stacklevel=3,
        )


def _warn_of_importers() -> None:
    found = [f"{module} ({', '.join(names)})" for module, names in _importers()]
    if not found:
        return
    listed = found[:_MOST_LISTED] + [f"{len(found) - _MOST_LISTED} more"] * (len(found) > _MOST_LISTED)
    warnings.warn(
        f"These modules imported classes of transformers before the takeover, and keep them: {', '.join(listed)}. Call "
        "hexloop.takeover() before they are imported, or start the program with `hexloop run`.",
        stacklevel=3,
    )


def _importers() -> Iterator[tuple[str, list[str]]]:
    """Yield the modules outside transformers that have classes of the family, or classes derived from these."""
    originals: dict[int, str] = {}
    for holder in filter(None, map(sys.modules.get, _HOLDERS)):
        for name in FAMILY_NAMES:
            value = vars(holder).get(name)
            if _is_of(getattr(value, "__module__", None), PACKAGE) and not _equals_text(value):
                originals[id(value)] = name
    for module_name_, module in list(sys.modules.items()) if originals else ():
        if not issubclass(type(module), ModuleType) or _is_of(module_name_, PACKAGE, "hexloop"):
            continue
        # The type decides what is a class: isinstance would ask the object, which may warn or import something.
        found = {
            originals[id(base)]
            for value in list(vars(module).values())
            for base in (type.mro(value) if issubclass(type(value), type) else (value,))
            if id(base) in originals
        }
        if found:
            yield module_name_, sorted(found)


def _equals_text(value: object) -> bool:
    """Return whether `value` is an enumeration of strings, whose members equal hexloop's."""
    return isinstance(value, type) and issubclass(value, Enum) and issubclass(value, str)
