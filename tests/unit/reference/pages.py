"""What the pages of the API reference show, as the site's generator reads the source.

`python -m tests.unit.reference.pages` writes the page of all names, from the others, and the overview at the head of
each page that shows many.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import yaml

if TYPE_CHECKING:
    import griffe

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
INDEX = DOCS / "api" / "index.md"
RENDERING = DOCS / "api" / "rendering.py"

OPENING = """---
hide: [toc]
---

# All names

Each page has the names that belong together, by what they are imported as.
"""

UNNAMED = "api/internals"
"""How pages start whose names are not listed, since programs do not import them."""

MANY = 12
"""A page with more entries than these starts with a table of them."""

END = "\n</div>\n"
OVERVIEW = "<!-- The entries of this page -->\n\n{}<!-- End of the entries -->\n\n"


@attrs.frozen
class Directive:
    """A line `::: name` of a page, which shows an object, with its options."""

    page: str
    name: str
    options: dict[str, Any]

    @property
    def members(self) -> list[str] | None:
        """The members that are shown, if the options list them."""
        return self.options.get("members")


@cache
def rendering() -> ModuleType:
    """Return the extension of griffe that the site uses."""
    spec = spec_from_file_location("rendering", RENDERING)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def package() -> tuple[griffe.Module, list[str]]:
    """Return the package as the site reads it, and the warnings about its docstrings."""
    import griffe

    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("griffe")
    logger.addHandler(handler)
    try:
        loaded = griffe.load(
            "hexloop",
            search_paths=[ROOT / "src"],
            docstring_parser="google",
            allow_inspection=False,
            extensions=griffe.load_extensions(rendering().Signatures),
        )
    finally:
        logger.removeHandler(handler)
    assert isinstance(loaded, griffe.Module)
    return loaded, warned


@cache
def found(name: str) -> griffe.Object:
    """Return the object of a name that starts with `hexloop.`."""
    object_or_alias = package()[0][name.partition(".")[2]]
    return object_or_alias.final_target if object_or_alias.is_alias else object_or_alias  # type: ignore[no-any-return]


@cache
def order_of_pages() -> tuple[str, ...]:
    """Return the pages of the API reference in the order of the navigation."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = yaml.safe_load(text)["nav"]
    sections: dict[str, Any] = {title: pages for section in navigation for title, pages in section.items()}
    return tuple(page for page in _listed(sections["Reference"]) if page != "api/index.md")


def _listed(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
        yield from _listed(entry)


@cache
def directives() -> tuple[Directive, ...]:
    """Return what each page of the API reference shows."""
    return tuple(_directives())


def _directives() -> Iterator[Directive]:
    for page in order_of_pages():
        lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("::: "):
                block = []
                for following in lines[number + 1 :]:
                    if not following.startswith("    "):
                        break
                    block.append(following)
                options = yaml.safe_load("\n".join(block)) or {}
                yield Directive(page, line.removeprefix("::: ").strip(), options.get("options", {}))


def names() -> Iterator[tuple[str, str]]:
    """Yield the page and the name of all that is shown, without the members of classes."""
    for page, name in entries():
        parent = found(name).parent
        if parent is None or not parent.is_class:
            yield page, name


def entries() -> Iterator[tuple[str, str]]:
    """Yield the page and the name of all that is shown by a directive, or as a member of a module."""
    for each in directives():
        shown = found(each.name)
        if shown.is_module:
            for name in public_members(shown, each.members):
                yield each.page, f"{each.name}.{name}"
        if not shown.is_module or each.options.get("show_root_heading", True):
            yield each.page, each.name


def without_overview(text: str) -> str:
    """Return the text of a page without the table of its entries."""
    return re.sub(OVERVIEW.format(".*?"), "", text, flags=re.DOTALL)


def with_overview(page: str) -> str:
    """Return the text of a page with the present table of its entries before the first of them, if there are many."""
    text = without_overview((DOCS / page).read_text(encoding="utf-8"))
    shown = [name for shown_on, name in entries() if shown_on == page]
    if len(shown) <= MANY or not page.startswith("api/"):
        return text
    rows = "".join(f"| [`{name.rpartition('.')[2]}`](#{name}) | {first_sentence(found(name))} |\n" for name in shown)
    table = f'<div class="entries" markdown>\n\n| name | what it is |\n|---|---|\n{rows}\n</div>\n\n'
    first = re.search(r"^(## |::: )", text, re.MULTILINE)
    assert first is not None
    return text[: first.start()] + OVERVIEW.format(table) + text[first.start() :]


def public_members(shown: griffe.Object, listed: list[str] | None = None) -> list[str]:
    """Return the members of a module or a class that a page shows: those listed, or all that have a docstring."""
    if listed is not None:
        return listed
    named = {name: each for name, each in shown.members.items() if not name.startswith(("_", "test_"))}
    return [name for name, each in named.items() if not each.is_alias and not each.is_module and each.docstring]


def first_sentence(shown: griffe.Object) -> str:
    """Return the start of a docstring, up to the end of a sentence or a semicolon, for a cell of a table."""
    text = " ".join((shown.docstring.value if shown.docstring else "").split("\n\n")[0].split())
    sentence = text.partition(". ")[0]
    return sentence.partition("; ")[0].removesuffix(".").replace("|", "\\|")


def index() -> str:
    """Return the page of all names as Markdown."""
    text, last = OPENING, ""
    for page, name in names():
        if page.startswith(UNNAMED):
            continue
        if page != last:
            title = (DOCS / page).read_text(encoding="utf-8").partition("\n# ")[2] or ""
            title = title or (DOCS / page).read_text(encoding="utf-8").removeprefix("# ")
            opened = '<div class="entries" markdown>\n\n| name | what it is |\n|---|---|\n'
            text += f"{'' if last == '' else END}\n## {title.partition(chr(10))[0]}\n\n{opened}"
            last = page
        address = page.removeprefix("api/") if page.startswith("api/") else f"../{page}"
        text += f"| [`{name}`]({address}#{name}) | {first_sentence(found(name))} |\n"
    return text + END


if __name__ == "__main__":
    for each in order_of_pages():
        (DOCS / each).write_text(with_overview(each), encoding="utf-8")
    INDEX.write_text(index(), encoding="utf-8")
