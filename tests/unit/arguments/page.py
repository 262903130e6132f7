"""The page of all arguments, generated from their declarations, and those of their class and choices.

`python -m tests.unit.arguments.page` regenerates them. What the declarations do not hold is in `shown.tsv`, by name:
the first release of transformers that has the argument, of 4.24 and later ones; the last one, unless that is the newest
release that was read; and a value to show, as JSON.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.declaration import GROUP, declarations
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS, LEGACY_ARGUMENTS
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments
from hexloop.app.assembly.ineffective import INEFFECTIVE
from hexloop.app.environment import VARIABLES
from tests.unit.reference.pages import with_overview

PAGE = Path(__file__).parents[3] / "docs" / "arguments.md"
METHODS_PAGE = PAGE.parent / "api" / "arguments.md"
CHOICES_PAGE = PAGE.parent / "api" / "choices.md"
SHOWN = Path(__file__).with_name("shown.tsv")

OLDEST = "4.24"
"""The oldest release of transformers whose arguments were read."""

OPENING = """---
hide: [toc]
---

# Training arguments

`TrainingArguments` takes these arguments. All but hexloop's own have the names and defaults of the current release of
transformers. All problems are reported together when the object is created; a value that is assigned later is checked
on assignment. `hexloop train --help all` prints the same list.

Each argument is also an option of the command line, and a key of `arguments` in the YAML of a recipe; the third column
has both. A truth value has an opposite, such as `--no_bf16`. *Since* is the first release of transformers with the
argument, of 4.24 and later ones; the others are hexloop's own.

A `Trainer` also accepts a `transformers.TrainingArguments` object; `trainer.args` is then hexloop's with the same
values. Arguments and methods that a subclass of it adds are refused by name: derive that class from hexloop's instead.
The class also has [methods and properties](api/arguments.md), and there are enumerations of [choices](api/choices.md).

::: hexloop.TrainingArguments
    options: WITHOUT

## All arguments by group

A group opens below, or by the link of an argument.

<div class="entries" markdown>

| group | arguments |
|---|---|
OVERVIEW
</div>
"""

METHODS = """# Methods of the arguments

The methods and properties of [`TrainingArguments`](../arguments.md).

{members}

The class also has `default_optim`, the default of `optim`; `is_torch_greater_or_equal_than_2_8`, which is true; and
`stores_refused`, whether a value that is refused on assignment is stored regardless, as during a takeover.

"""

ENUMERATIONS = """# Choices of the arguments

An argument also takes the text of a choice.

{choices}

::: hexloop.AcceleratorConfig
"""

CHOICES = (
    *("IntervalStrategy", "SaveStrategy", "SchedulerType", "OptimizerNames", "HubStrategy", "DebugOption"),
    *("FSDPOption", "HPSearchBackend", "ParallelMode"),
)
"""The enumerations of arguments, as `hexloop` exports them."""

EARLIER = """
## Names of earlier releases

Each of these still works in calls, files, command lines and subclasses, and emits a `FutureWarning` with what to write
instead. It is refused if the current name has a different value that is not its default. Reading such a name from an
object returns the equivalent of the current arguments.

```python
import warnings

from hexloop import TrainingArguments

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    arguments = TrainingArguments("out", evaluation_strategy="epoch")

assert arguments.eval_strategy == arguments.evaluation_strategy == "epoch"
assert str(caught[0].message) == "evaluation_strategy is an argument of earlier releases; write eval_strategy."
```

"""

REFUSED = """
## What is refused

`parallelism_config`, which is not supported yet, is refused when a `Trainer` is created. Of the names of earlier
releases, these are refused because the feature is gone:
`mp_parameters`, and a `ray_scope` other than `"last"`.

## What has no effect

Scripts often pass arguments that do not apply to the run. These are accepted and checked, and a message of level INFO
on the logger `hexloop` (shown with `log_level="info"`) explains why they have no effect:

"""

ENVIRONMENT = """
## Environment variables

| variable | what it does |
|---|---|
"""


@attrs.frozen
class Shown:
    """What the page has of an argument besides its declaration; see `shown.tsv`."""

    since: str
    until: str
    example: str

    @property
    def release(self) -> str:
        """The first release with the argument; empty if it is hexloop's own."""
        return f"≤ {OLDEST}" if self.since == OLDEST else self.since


def shown() -> Mapping[str, Shown]:
    """Return the rows of `shown.tsv` by name; an argument without one is hexloop's own."""
    lines = SHOWN.read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    found = {name: Shown(since, until, example) for name, since, until, example in rows}
    return defaultdict(lambda: Shown("", "", ""), found)


def example_of(cls: type[Any], name: str) -> Any:
    """Return a value of an argument to show: that of the table, or the opposite of a truth value's default."""
    if text := shown()[name].example:
        return json.loads(text)
    return cls.__dataclass_fields__[name].default is not True


def option_of(name: str, value: Any) -> list[str]:
    """Return the words of the command line that set an argument."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no_{name}"]
    if isinstance(value, list) and not any(isinstance(each, dict) for each in value):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", value if isinstance(value, str) else json.dumps(value)]


def line_of(name: str, value: Any) -> str:
    """Return the line of YAML that sets an argument."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_./][\w./ -]*", value) and value not in TRUTH
    return f"{name}: {value if is_plain else json.dumps(value)}"


TRUTH = ("yes", "no", "on", "off", "true", "false", "null")
"""Texts that YAML reads as other values without quotes."""


def page() -> str:
    """The page of all arguments as Markdown."""
    found: list[tuple[type, list[str], type[Any]]] = [(*group, Seq2SeqTrainingArguments) for group in _by_group()]
    found.append((SFTConfig, list(vars(SFTConfig)[GROUP]), SFTConfig))
    groups = "".join(_group(*group) for group in found)
    overview = "".join(_links(*group) for group in found)
    opening = OPENING.replace("WITHOUT", WITHOUT_PARAMETERS.replace("{members", "{heading_level: 2, members")).replace(
        "OVERVIEW", overview
    )
    described = opening + groups + REFUSED + _remarks() + ENVIRONMENT + _rows(VARIABLES.items())
    return described + EARLIER + _earlier()


def methods_page() -> str:
    """The methods and properties of the class as Markdown, without the arguments themselves and private names."""
    found = {
        name: None
        for owner in TrainingArguments.__mro__
        for name, value in vars(owner).items()
        if _is_shown(owner, name, value)
    }
    order = sorted(found, key=lambda name: (isinstance(getattr(TrainingArguments, name), property), "set_" not in name))
    members = "\n\n".join(f"::: hexloop.TrainingArguments.{name}" for name in order)
    return METHODS.format(members=members)


def choices_page() -> str:
    """The enumerations of choices as Markdown."""
    choices = "\n\n".join(f"::: hexloop.{name}\n    options: {{show_attribute_values: true}}" for name in CHOICES)
    return ENUMERATIONS.format(choices=choices)


def _is_shown(owner: type, name: str, value: object) -> bool:
    is_ours = owner.__module__.startswith("hexloop.")
    return is_ours and not name.startswith("_") and (isinstance(value, property) or inspect.isfunction(value))


WITHOUT_PARAMETERS = (
    "{members: [], show_docstring_parameters: false, "
    "docstring_options: {warn_unknown_params: false, warn_missing_types: false}}"
)
"""How the docstring of a class is shown whose parameters are in a table of the page."""


def _by_group() -> Iterator[tuple[type, list[str]]]:
    left = dict.fromkeys(field.name for field in dataclasses.fields(Seq2SeqTrainingArguments))
    for owner in reversed(Seq2SeqTrainingArguments.__mro__):
        names = [name for name in inspect.get_annotations(owner) if name in left]
        if names:
            yield owner, names
        for name in names:
            del left[name]


def _heading(owner: type, cls: type[Any]) -> str:
    """The title of a group: the first line of its docstring, or what a class adds to `TrainingArguments`."""
    title = (inspect.getdoc(owner) or "").partition("\n")[0].rstrip(".")
    if owner is cls:
        return f"{title.partition(',')[0]} (`{cls.__name__}` alone)"
    return title


def _links(owner: type, names: list[str], cls: type[Any]) -> str:
    """A row of the overview: a group, and its arguments as links, which may be broken between any two."""
    known = declarations(cls)  # type: ignore[arg-type]  # classes can be hashed
    heading = _heading(owner, cls)
    anchor = re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")
    links = ", ".join(f"[`{name}`](#{name})" for name in names if name in known)
    return f"| [{heading}](#{anchor}) | {links} |\n"


def _group(owner: type, names: list[str], cls: type[Any]) -> str:
    """A section with the arguments of these names, folded until it is opened. cls: the class that has them."""
    known = declarations(cls)  # type: ignore[arg-type]  # classes can be hashed
    listed = [name for name in names if name in known]
    rows = "".join(_argument(cls, name) for name in listed)
    text, _, details = (inspect.getdoc(owner) or "").partition("\n")[2].partition("\nArgs:\n")
    if owner is cls:
        text, details = f"::: hexloop.{cls.__name__}\n    options: {WITHOUT_PARAMETERS}\n", ""
    text = "" if not text.strip() else f"{text.strip()}\n\n"
    columns = "| argument | what it does | command line and YAML | since |\n|---|---|---|---|\n"
    count = f"{len(listed)} argument{'' if len(listed) == 1 else 's'}"
    opened = f'<details class="arguments" markdown>\n<summary>{count}</summary>\n\n'
    return f"\n## {_heading(owner, cls)}\n\n{text}{opened}{columns}{rows}{_details(details)}\n</details>\n"


def _details(section: str) -> str:
    """A list of what a group's docstring says of its arguments, from the entries of a section `Args`."""
    section = section.partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    rows = "".join(f"- `{name}`: {' '.join(text.split())}\n" for name, text in entries)
    return f"\n{rows}" if rows else ""


def _argument(cls: type[Any], name: str) -> str:
    field = cls.__dataclass_fields__[name]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    kind = next(found[name] for owner in cls.__mro__ if name in (found := inspect.get_annotations(owner)))
    described = f'<a id="{name}"></a>`{name}`<br>{_kind(kind)}, default `{default!r}`'
    return f"| {described} | {_cell(field.metadata['help'])} | {_forms(cls, name)} | {shown()[name].release} |\n"


def _kind(annotation: str) -> str:
    """The type of an argument; None comes last."""
    kinds = re.split(r" \| (?![^\[]*\])", annotation)
    return " or ".join(f"`{each}`" for each in sorted(kinds, key=lambda each: each == "None"))


def _forms(cls: type[Any], name: str) -> str:
    """Both written forms. What needs quotes in a shell has them."""
    if name == "parallelism_config":
        return ""
    value = example_of(cls, name)
    words = (word if re.fullmatch(r"[\w./@%+=:,-]+", word) else f"'{word}'" for word in option_of(name, value))
    return f"`{' '.join(words)}`<br>`{line_of(name, value)}`"


def _earlier() -> str:
    kept = {name: f"still an argument; better {instead}" for name, instead in DISCOURAGED_ARGUMENTS.items()}
    written = {name: old.write for name, old in LEGACY_ARGUMENTS.items()} | kept
    rows = "".join(f"| `{name}` | {_cell(text)} | {_releases(name)} |\n" for name, text in sorted(written.items()))
    return f"| name | what to write today | in releases |\n|---|---|---|\n{rows}"


def _releases(name: str) -> str:
    """The releases of transformers that had an argument, as far as they were read."""
    row = shown()[name]
    first, last = f"{row.release} to ", row.until or "now"
    return f"before {OLDEST}" if row.since == "-" else f"{first}{last}"


def _remarks() -> str:
    return "".join(f"- {', '.join(f'`{name}`' for name in row.names)}: {row.because}\n" for row in INEFFECTIVE)


def _rows(pairs: Any) -> str:
    return "".join(f"| `{name}` | {_cell(text)} |\n" for name, text in pairs)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    METHODS_PAGE.write_text(methods_page(), encoding="utf-8")
    CHOICES_PAGE.write_text(choices_page(), encoding="utf-8")
    METHODS_PAGE.write_text(with_overview("api/arguments.md"), encoding="utf-8")
