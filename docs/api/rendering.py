"""What the site adds to the docstrings of the API reference, as an extension of griffe, which reads the source.

Classes of attrs and typed dictionaries get the constructor that they have when they are imported. A parameter that a
docstring does not describe gets the description of the method that it overrides, of the port that its class
implements, or of the constructor of a base class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

ATTRS = frozenset({"attrs.frozen", "attrs.define", "attrs.mutable"})
FIELD = frozenset({"attrs.field", "attr.field"})
PORTS = "hexloop.ports."


class Signatures(griffe.Extension):
    """Completes constructors and descriptions of parameters, once the package is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete every class, then every function and method."""
        classes = list(_classes(pkg))
        for cls in classes:
            _add_constructor(cls)
        ports = [each for each in classes if each.path.startswith(PORTS) and "Protocol" in map(_name, each.bases)]
        for cls in classes:
            _complete(cls, _constructors(cls))
            for name, member in cls.members.items():
                if isinstance(member, griffe.Function):
                    _complete(member, _overridden(cls, name, ports))


def described(found: griffe.Object) -> griffe.DocstringSectionParameters | None:
    """Return the section of a docstring that describes parameters; None if there is none."""
    for section in found.docstring.parsed if found.docstring else ():
        if isinstance(section, griffe.DocstringSectionParameters):
            return section
    return None


def parameters(found: griffe.Class | griffe.Function) -> list[griffe.Parameter]:
    """Return what a caller passes, without the object itself."""
    return [each for each in found.parameters if each.name not in ("self", "cls") and each.name not in ("/", "*")]


def _classes(module: griffe.Object) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Class | griffe.Module):
            yield from _classes(member)


def _name(expression: str | griffe.Expr) -> str:
    """Return the last name of an expression, without its type arguments."""
    return str(expression).partition("[")[0].rpartition(".")[2]


def _bases(cls: griffe.Class) -> Iterator[griffe.Class]:
    """Yield the base classes of the package, in the order of method resolution."""
    for base in cls.resolved_bases:
        target = base.final_target if isinstance(base, griffe.Alias) else base
        if isinstance(target, griffe.Class):
            yield target
            yield from _bases(target)


# Constructors


def _add_constructor(cls: griffe.Class) -> None:
    """Add the `__init__` that attrs makes of the fields, or that stands for the keys of a typed dictionary."""
    if "__init__" in cls.members:
        return
    if any(_decorator(each) in ATTRS for each in cls.decorators):
        found = _fields_of(cls)
        kind = griffe.ParameterKind.positional_or_keyword
    elif "TypedDict" in map(_name, cls.bases):
        found = {name: (each, None) for name, each in _annotated(cls)}
        kind = griffe.ParameterKind.keyword_only
    elif "NamedTuple" in map(_name, cls.bases):
        found = {name: (each, each.value) for name, each in _annotated(cls)}
        kind = griffe.ParameterKind.positional_or_keyword
    else:
        return
    made = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for name, (field, default) in found.items():
        made.append(griffe.Parameter(name.lstrip("_"), annotation=field.annotation, kind=kind, default=default))
    constructor = griffe.Function("__init__", parameters=griffe.Parameters(*made), returns="None", parent=cls)
    constructor.lineno, constructor.endlineno = cls.lineno, cls.endlineno
    cls.set_member("__init__", constructor)


def _decorator(decorator: griffe.Decorator) -> str:
    value = decorator.value
    called = value.function if isinstance(value, griffe.ExprCall) else value
    return called.canonical_path if isinstance(called, griffe.Expr) else str(called)


def _annotated(cls: griffe.Class) -> Iterator[tuple[str, griffe.Attribute]]:
    for name, member in cls.members.items():
        is_field = isinstance(member, griffe.Attribute) and member.annotation is not None
        if is_field and "property" not in member.labels and member.labels != {"class-attribute"}:  # not a ClassVar
            yield name, member


def _fields_of(cls: griffe.Class) -> dict[str, tuple[griffe.Attribute, str | griffe.Expr | None]]:
    """Return the fields of a class of attrs that its constructor takes, those of base classes first."""
    found: dict[str, tuple[griffe.Attribute, str | griffe.Expr | None]] = {}
    for owner in (*reversed(list(_bases(cls))), cls):
        if not any(_decorator(each) in ATTRS for each in owner.decorators):
            continue
        computed = {str(each.value).removesuffix(".default") for each in _all_decorators(owner)}
        for name, field in _annotated(owner):
            value, is_taken = _default_of(field)
            if is_taken:
                found[name] = field, "..." if name in computed and value is None else value
            else:
                found.pop(name, None)
    return found


def _all_decorators(cls: griffe.Class) -> Iterator[griffe.Decorator]:
    for member in cls.members.values():
        if isinstance(member, griffe.Function):
            yield from member.decorators


def _default_of(field: griffe.Attribute) -> tuple[str | griffe.Expr | None, bool]:
    """Return the default of a field of attrs, and whether the constructor takes it."""
    value = field.value
    if not isinstance(value, griffe.ExprCall) or getattr(value.function, "canonical_path", "") not in FIELD:
        return value, True
    options = {each.name: each.value for each in value.arguments if isinstance(each, griffe.ExprKeyword)}
    default = f"{options['factory']}()" if "factory" in options else options.get("default")
    return default, str(options.get("init")) != "False"


# Descriptions


def _constructors(cls: griffe.Class) -> Iterator[griffe.Object]:
    """Yield what describes parameters of the constructor of a class besides its own docstring."""
    if isinstance(own := cls.members.get("__init__"), griffe.Function):
        yield own
    yield from _bases(cls)


def _overridden(cls: griffe.Class, name: str, ports: list[griffe.Class]) -> Iterator[griffe.Object]:
    """Yield the methods that a method overrides, then those of the ports that its class implements."""
    own = {cls.path}
    for base in _bases(cls):
        own.add(base.path)
        if isinstance(found := base.members.get(name), griffe.Function):
            yield found
    if name.startswith("_"):
        return
    members = {*cls.members, *(member for base in _bases(cls) for member in base.members)}
    for port in ports:
        found = port.members.get(name)
        if isinstance(found, griffe.Function) and port.path not in own and _public(port) <= members:
            yield found


def _public(port: griffe.Class) -> set[str]:
    return {name for each in (port, *_bases(port)) for name in each.members if not name.startswith("_")}


def _complete(found: griffe.Class | griffe.Function, others: Iterator[griffe.Object]) -> None:
    """Describe the parameters that the docstring leaves out, in the order of the signature."""
    wanted = parameters(found)
    if not wanted or found.docstring is None:
        return
    section = described(found)
    for each in section.value if section else ():
        if each.name.startswith("*"):
            each.value = None  # griffe's () and {} are not what a caller leaves out
    texts = {each.name.lstrip("*"): each for each in section.value} if section else {}
    if all(each.name in texts for each in wanted):
        return
    for other in others:
        for each in _described_with_others(other):
            texts.setdefault(each.name.lstrip("*"), each)
    rows = []
    for each in wanted:
        if (text := texts.get(each.name)) is not None:
            name = text.name if text.name.lstrip("*") == each.name else each.name
            row = griffe.DocstringParameter(name, description=text.description, annotation=each.annotation)
            row.value = None if row.name.startswith("*") else each.default
            rows.append(row)
    if section is not None:
        section.value[:] = rows
    elif rows:
        sections = found.docstring.parsed
        texts_first = [each.kind is griffe.DocstringSectionKind.text for each in sections]
        at = texts_first.index(False) if False in texts_first else len(sections)
        sections.insert(at, griffe.DocstringSectionParameters(rows))


def _described_with_others(found: griffe.Object) -> list[griffe.DocstringParameter]:
    section = described(found)
    return section.value if section else []
