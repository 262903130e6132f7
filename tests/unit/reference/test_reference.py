"""The API reference shows every public name under the name it is imported by, with tables of parameters."""

from __future__ import annotations

import inspect
import os
import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import hexloop
import hexloop.testing
from tests.browser import REQUIRED
from tests.unit.reference import pages

if TYPE_CHECKING:
    import griffe

pytestmark = pytest.mark.skipif(
    find_spec("griffe") is None and os.environ.get(REQUIRED) != "required", reason="needs the extra docs"
)

SHOWN_AS_ADAPTERS = "docs/api/testing.md lists the names that are on the page of adapters"
VALUES = frozenset({"AnyEvent"})
"""Public names that are neither classes nor functions."""


def shown_objects() -> list[tuple[str, str]]:
    """Return the page and the name of every class, function and method that a page shows."""
    found: dict[str, str] = {}
    for each in pages.directives():
        root = pages.found(each.name)
        listed = [each.name]
        if root.is_module or root.is_class:
            listed += [f"{each.name}.{name}" for name in pages.public_members(root, each.members)]
            for name in listed[1:]:
                member = pages.found(name)
                if root.is_module and member.is_class:
                    listed += [f"{name}.{inner}" for inner in pages.public_members(member)]
        found.update(dict.fromkeys(listed, each.page))
    return [(page, name) for name, page in found.items()]


# Names


@pytest.mark.parametrize("module", [hexloop, hexloop.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_shown(module: Any) -> None:
    """By the name that it is imported by, on one page."""
    shown = [name for _, name in pages.names()]
    listed = re.findall(r"`(\w+)`", (pages.DOCS / "api" / "testing.md").read_text().partition("<!--")[0])
    elsewhere = {f"hexloop.testing.{name}" for name in listed}
    missing = [name for name in module.__all__ if f"{module.__name__}.{name}" not in {*shown, *elsewhere}]
    assert missing == [], SHOWN_AS_ADAPTERS
    assert sorted(shown) == sorted(set(shown)), "a name is on two pages"


def test_names_that_are_on_the_page_of_adapters_exist_there() -> None:
    """Those that the page of the test kit refers to."""
    listed = re.findall(r"`(\w+)`", (pages.DOCS / "api" / "testing.md").read_text().partition("<!--")[0])
    there = {name.rpartition(".")[2] for page, name in pages.names() if page.startswith("api/adapters")}
    assert {name for name in listed if hasattr(hexloop.testing, name)} <= there


def test_no_public_name_is_shown_by_the_module_that_defines_it() -> None:
    """`hexloop.Trainer` is shown as such."""
    public = {pages.found(f"hexloop.{name}").path for name in hexloop.__all__ if name not in VALUES}
    assert [name for _, name in pages.names() if name in public] == []


@pytest.mark.parametrize("name", ["Trainer", "TrainingArguments"])
def test_every_public_member_is_shown(name: str) -> None:
    """Methods, properties and documented attributes, of which those of the arguments have their tables."""
    members = pages.found(f"hexloop.{name}").all_members
    text = "".join((pages.DOCS / page).read_text() for page in pages.order_of_pages())
    declared = set(re.findall(r'<a id="(\w+)">', text))
    missing = [
        member
        for member in members
        if not member.startswith("_")
        and member not in declared
        and f"::: hexloop.{name}.{member}\n" not in text
        and not re.search(rf"^        - {member}$", text, re.MULTILINE)
        and f"`{member}`" not in text
    ]
    assert missing == []


def test_the_page_of_all_names_is_up_to_date() -> None:
    """`python -m tests.unit.reference.pages` writes it."""
    assert pages.INDEX.read_text(encoding="utf-8") == pages.index()


@pytest.mark.parametrize("page", pages.order_of_pages())
def test_a_page_of_many_entries_starts_with_a_table_of_them(page: str) -> None:
    """`python -m tests.unit.reference.pages` writes it."""
    text = (pages.DOCS / page).read_text(encoding="utf-8")
    assert text == pages.with_overview(page)
    assert text.count("\n::: ") <= pages.MANY or 'class="entries"' in text or page == "arguments.md"


def test_legacy_names_are_on_the_last_page() -> None:
    """After everything that new code uses."""
    assert pages.order_of_pages()[-1] == "api/legacy.md"
    arguments = (pages.DOCS / "arguments.md").read_text()
    assert re.findall(r"^## (.*)$", arguments, re.MULTILINE)[-1] == "Names of earlier releases"


# Parameters


def test_every_parameter_that_a_page_shows_is_described() -> None:
    """In a section that becomes a table: of the docstring, or of what the method overrides or implements."""
    lacking = {}
    for page, name in shown_objects():
        shown = pages.found(name)
        if not (shown.is_class or shown.is_function) or is_fixture(shown):
            continue
        if shown.is_class and "__init__" not in shown.all_members:
            continue
        if shown.is_class and not of_hexloop(shown.all_members["__init__"]):
            continue
        wanted = [each.name for each in pages.rendering().parameters(shown)]
        section = pages.rendering().described(shown)
        described = {each.name.lstrip("*") for each in section.value if each.description} if section else set()
        if missing := [each for each in wanted if each not in described]:
            lacking[f"{page}: {name}"] = missing
    assert lacking == {}


def is_fixture(shown: griffe.Object) -> bool:
    """Return whether pytest passes the parameters."""
    return any("fixture" in str(each.value) for each in getattr(shown, "decorators", ()))


def of_hexloop(member: griffe.Object | griffe.Alias) -> bool:
    target = member.final_target if member.is_alias else member  # type: ignore[union-attr]
    return target.path.startswith("hexloop.")


def test_the_site_has_no_warning_about_a_docstring() -> None:
    """Such as a described parameter that is not in the signature."""
    assert pages.package()[1] == []


FORMER = re.compile(r"(?:^|(?<=[.)] ))`?(\w+)`?(?:, \w+)*: (?=[a-z])", re.MULTILINE)
"""A parameter that is described in a paragraph."""


def test_no_parameter_is_described_in_a_paragraph() -> None:
    """A page would show it as plain text."""
    former = []
    for page, name in shown_objects():
        shown = pages.found(name)
        if shown.docstring is None or not (shown.is_class or shown.is_function):
            continue
        wanted = {each.name for each in pages.rendering().parameters(shown)}
        for section in shown.docstring.parsed:
            if section.kind.value == "text":
                former += [f"{page}: {name}: {each}" for each in FORMER.findall(section.value) if each in wanted]
    assert former == []


def test_raised_errors_are_sections() -> None:
    """No paragraph of a docstring says that a certain error is raised."""
    former = []
    for page, name in shown_objects():
        shown = pages.found(name)
        for section in shown.docstring.parsed if shown.docstring else ():
            if section.kind.value == "text" and re.search(r"\bRaises `?[A-Z]\w+Error", section.value):
                former.append(f"{page}: {name}")
    assert former == []


# The constructors that the extension adds


def constructors() -> list[str]:
    """Return the classes of attrs that pages show."""
    kinds = pages.rendering().ATTRS
    return [
        name
        for _, name in shown_objects()
        if (shown := pages.found(name)).is_class
        and any(pages.rendering()._decorator(each) in kinds for each in getattr(shown, "decorators", ()))
    ]


def test_constructors_of_attrs_classes_are_those_at_run_time() -> None:
    """Their parameters, in order, and which have a default."""
    different = {}
    for name in constructors():
        path = pages.found(name).path
        cls = getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
        expected = [(each.name, each.default is not each.empty) for each in inspect.signature(cls).parameters.values()]
        shown = pages.rendering().parameters(pages.found(name))
        if expected != [(each.name, each.default is not None) for each in shown]:
            different[name] = expected, [(each.name, str(each.default)) for each in shown]
    assert different == {}
    assert len(constructors()) > 40


def test_parameters_of_overridden_and_implemented_methods_are_described() -> None:
    """A storage's method says nothing about its parameters; the port does."""
    method = pages.found("hexloop.adapters.storage.local.LocalStorage.write")
    assert "Args:" not in (method.docstring.value if method.docstring else "")
    section = pages.rendering().described(method)
    assert [each.name for each in section.value] == ["path", "chunks"]
    assert all(each.description for each in section.value)
