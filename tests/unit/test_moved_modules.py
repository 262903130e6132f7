"""Old module paths of release 0.1.0 work for one release, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

from hexloop._moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_returns_the_objects_of_the_new_one(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the old path warns and names the new one, and its classes are the same objects."""
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        monkeypatch.delitem(sys.modules, name)
    new = importlib.import_module(MOVED[old])
    with pytest.warns(FutureWarning, match=MOVED[old]):
        moved = importlib.import_module(old)
    public = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    assert public
    assert all(getattr(moved, name) is getattr(new, name) for name in public)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = moved.no_such_name


def test_an_unknown_path_is_not_found() -> None:
    """Paths that are not listed raise the usual error."""
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("hexloop.adapters.clock.no_such_module")
