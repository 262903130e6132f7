"""Resolving import paths, and the errors of paths that cannot be resolved."""

from __future__ import annotations

import collections
import json.decoder
import sys

import pytest

from hexloop.app.recipe.parts import resolve
from hexloop.domain.wording import RefusalError
from tests.unit.recipe.small_project import Project


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("collections.OrderedDict", collections.OrderedDict),
        ("collections.OrderedDict.fromkeys", collections.OrderedDict.fromkeys),
        ("json.decoder.JSONDecoder", json.decoder.JSONDecoder),
        ("sys.maxsize", sys.maxsize),
    ],
)
def test_path_resolves_modules_and_attributes(path: str, found: object) -> None:
    """A path resolves modules, submodules and nested attributes."""
    assert resolve(path) == found


def test_submodule_is_imported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submodule in the path is imported if needed."""
    project.write("package/__init__.py", "")
    project.write("package/inner.py", "value = 3")
    monkeypatch.syspath_prepend(str(project.folder))
    assert resolve("package.inner.value") == 3


@pytest.mark.parametrize(
    ("path", "because", "remedy"),
    [
        ("nope.Model", "there is no module nope", "install it, or set PYTHONPATH"),
        ("collectoins.OrderedDict", "there is no module collectoins", "did you mean collections?"),
        ("qqqqqq.Thing", "there is no module qqqqqq", "install it, or set PYTHONPATH"),
        ("collections.OrderdDict", "the module collections has no OrderdDict", "did you mean OrderedDict?"),
        ("collections.ordereddict", "the module collections has no ordereddict", "did you mean OrderedDict?"),
        ("json.decodr.JSONDecoder", "the module json has no decodr", "did you mean decoder?"),
        ("collections.abc", "that is a module", "name something in it, as in collections.abc.MyModel"),
        ("json", "that is a module", "name something in it, as in json.MyModel"),
        ("my model", "that is not an import path", "write names separated by dots, as in my_module.MyModel"),
        ("json..loads", "that is not an import path", "write names separated by dots, as in my_module.MyModel"),
        ("sys.maxsize.qqqqqq", "the int sys.maxsize has no qqqqqq", "check the name"),
    ],
)
def test_unresolvable_path_is_rejected(path: str, because: str, remedy: str) -> None:
    """The error names the part that failed, the reason, and the closest name."""
    with pytest.raises(RefusalError) as caught:
        resolve(path)
    assert (caught.value.because, caught.value.remedy) == (because, remedy)


@pytest.mark.parametrize(
    ("source", "because", "remedy"),
    [
        ("x = 1\ny = x / 0\n", "raised ZeroDivisionError: division by zero", "fix that error"),
        ("def f(:\n", "raised SyntaxError: invalid syntax (broken.py, line 1)", "fix that error"),
        ("raise SystemExit(3)\n", "raised SystemExit: 3", "fix that error"),
        ("import qqqqqq\n", "needs the module qqqqqq, which is not installed", "install qqqqqq"),
        ("from json import qqqqqq\n", "raised ImportError: cannot import name 'qqqqqq' from 'json'", "fix that error"),
    ],
)
def test_error_on_import_is_reported(
    project: Project, monkeypatch: pytest.MonkeyPatch, source: str, because: str, remedy: str
) -> None:
    """The message has the error with file and line, and the error is the cause."""
    path = project.write("broken.py", source)
    monkeypatch.syspath_prepend(str(project.folder))
    with pytest.raises(RefusalError) as caught:
        resolve("broken.thing")
    assert caught.value.because.startswith(f"importing broken {because}")
    assert caught.value.remedy == remedy
    assert caught.value.__cause__ is not None
    if "SyntaxError" not in because:
        assert caught.value.because.endswith(f"({path}, line {len(source.splitlines())})")


def test_error_of_a_lazy_attribute_is_reported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error raised by a module's `__getattr__` is reported like one on import."""
    project.write("lazy.py", "def __getattr__(name):\n    raise ImportError(f'{name} needs a compiler')\n")
    monkeypatch.syspath_prepend(str(project.folder))
    with pytest.raises(RefusalError, match=r"importing lazy\.Thing raised ImportError: Thing needs a compiler"):
        resolve("lazy.Thing")
