"""The page of all arguments, generated from their declarations.

`python -m tests.unit.arguments.page` regenerates it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.declaration import GROUP, declarations
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS, LEGACY_ARGUMENTS
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments
from hexloop.app.assembly.combinations import INEFFECTIVE
from hexloop.app.environment import VARIABLES

PAGE = Path(__file__).parents[3] / "docs" / "arguments.md"

OPENING = """# Every argument

`TrainingArguments` takes these arguments. All but hexloop's own have the names and defaults of the current release of
transformers. All problems are reported together when the object is created; a value that is assigned later is checked
on assignment. `hexloop train --help all` prints the same list, and [the groups](api/arguments.md) have more details.

```python
from hexloop import TrainingArguments

arguments = TrainingArguments("out", learning_rate=1e-3, eval_strategy="epoch")
arguments.learning_rate = 5e-4
assert arguments.set_lr_scheduler("cosine", warmup_steps=0.1).get_warmup_steps(1000) == 100
```

A `Trainer` also accepts a `transformers.TrainingArguments` object; `trainer.args` is then hexloop's with the same
values. Arguments and methods that a subclass of it adds are refused by name: derive that class from hexloop's instead.
"""

EARLIER = """
## Names of earlier releases

Each of these still works in calls, files, command lines and subclasses, and emits a `FutureWarning` with what to write
instead. It is refused if the current name has a different value that is not its default. Reading such a name from an
object returns the equivalent of the current arguments.

```python
import warnings

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


def page() -> str:
    """The page as Markdown."""
    groups = "".join(_group(owner, names) for owner, names in _by_group())
    groups += _group(SFTConfig, list(vars(SFTConfig)[GROUP]), SFTConfig)
    return OPENING + groups + EARLIER + _earlier() + REFUSED + _remarks() + ENVIRONMENT + _rows(VARIABLES.items())


def _by_group() -> Iterator[tuple[type, list[str]]]:
    left = dict.fromkeys(field.name for field in dataclasses.fields(Seq2SeqTrainingArguments))
    for owner in reversed(Seq2SeqTrainingArguments.__mro__):
        names = [name for name in inspect.get_annotations(owner) if name in left]
        if names:
            yield owner, names
        for name in names:
            del left[name]


def _group(owner: type, names: list[str], cls: type[Any] = Seq2SeqTrainingArguments) -> str:
    """A section with the arguments of these names. cls: the class that has them."""
    known = declarations(cls)  # type: ignore[arg-type]  # classes can be hashed
    rows = "".join(_argument(cls, name) for name in names if name in known)
    heading = (owner.__doc__ or "").split("\n")[0].rstrip(".")
    if issubclass(owner, TrainingArguments):
        heading = f"{heading} (`{cls.__name__}` alone)"
    return f"\n## {heading}\n\n| argument | default | what it does |\n|---|---|---|\n{rows}"


def _argument(cls: type[Any], name: str) -> str:
    field = cls.__dataclass_fields__[name]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"| `{name}` | `{default!r}` | {_cell(field.metadata['help'])} |\n"


def _earlier() -> str:
    kept = {name: f"still an argument; better {instead}" for name, instead in DISCOURAGED_ARGUMENTS.items()}
    written = {name: old.write for name, old in LEGACY_ARGUMENTS.items()} | kept
    return "| name | what to write today |\n|---|---|\n" + _rows(sorted(written.items()))


def _remarks() -> str:
    return "".join(f"- {', '.join(f'`{name}`' for name in row.names)}: {row.because}\n" for row in INEFFECTIVE)


def _rows(pairs: Any) -> str:
    return "".join(f"| `{name}` | {_cell(text)} |\n" for name, text in pairs)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
