"""Import paths: what they lead to, and what is said of those that lead nowhere."""

from __future__ import annotations

import collections
import json.decoder
import sys

import pytest

from hexloop.app.recipe.resolving import resolve
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
def test_a_path_leads_through_modules_and_attributes(path: str, found: object) -> None:
    """A path leads to what a module holds, to what that holds, and into submodules."""
    assert resolve(path) == found


def test_a_submodule_that_nobody_imported_is_imported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module inside a package is imported where the path goes through it."""
    project.write("package/__init__.py", "")
    project.write("package/inner.py", "value = 3")
    monkeypatch.syspath_prepend(str(project.folder))
    assert resolve("package.inner.value") == 3


@pytest.mark.parametrize(
    ("path", "because", "remedy"),
    [
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
def test_a_path_that_leads_nowhere_is_refused_with_what_failed(path: str, because: str, remedy: str) -> None:
    """It is said which part of the path failed, how, and which name was probably meant."""
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
def test_a_module_that_raises_while_it_is_imported_is_told_with_what_it_raised(
    project: Project, monkeypatch: pytest.MonkeyPatch, source: str, because: str, remedy: str
) -> None:
    """The error, its file and its line are told, and the error itself is the cause."""
    path = project.write("broken.py", source)
    monkeypatch.syspath_prepend(str(project.folder))
    with pytest.raises(RefusalError) as caught:
        resolve("broken.thing")
    assert caught.value.because.startswith(f"importing broken {because}")
    assert caught.value.remedy == remedy
    assert caught.value.__cause__ is not None
    if "SyntaxError" not in because:
        assert caught.value.because.endswith(f"({path}, line {len(source.splitlines())})")


def test_an_attribute_that_is_imported_when_asked_for_may_raise(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a module raises when an attribute is asked for is told like what it raises on import."""
    project.write("lazy.py", "def __getattr__(name):\n    raise ImportError(f'{name} needs a compiler')\n")
    monkeypatch.syspath_prepend(str(project.folder))
    with pytest.raises(RefusalError, match=r"importing lazy\.Thing raised ImportError: Thing needs a compiler"):
        resolve("lazy.Thing")
