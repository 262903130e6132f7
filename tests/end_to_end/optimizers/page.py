"""The table of optimizers in the docs, generated from the rows that make them and those that try them.

`python -m tests.end_to_end.optimizers.page` regenerates it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from math import isclose
from pathlib import Path
from typing import Any

from hexloop.adapters.trainable.torch.decay_groups import decayed_names
from hexloop.adapters.trainable.torch.optimizers import OPTIMIZERS, OptimizerSpec, Row, build_optimizer
from tests.end_to_end.optimizers.cases import CASES
from tests.end_to_end.optimizers.program import words

PAGE = Path(__file__).parents[3] / "docs" / "optimizers.md"
BEGIN, END = "<!-- The table of optimizers: python -m tests.end_to_end.optimizers.page -->\n", "<!-- end -->\n"

SOUGHT: Mapping[str, float] = {
    "learning_rate": 0.00123,
    "adam_beta1": 0.8123,
    "adam_beta2": 0.9123,
    "adam_epsilon": 1.23e-7,
    "weight_decay": 0.0123,
    "warmup_steps": 7,
}
"""Values that occur nowhere else, by argument."""


def spec_of(name: str) -> OptimizerSpec:
    """Return what the arguments `SOUGHT` say about an optimizer, on a CPU."""
    rate, first, second, epsilon, decay, warmup = SOUGHT.values()
    return OptimizerSpec(
        name, rate, (first, second), epsilon, "cpu", decay, warmup, model=words(), target_modules="all-linear"
    )


def numbers_in(value: Any) -> Iterator[float]:
    """Yield the numbers in a value, at any depth; those of tensors too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "params":
                yield from numbers_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from numbers_in(inner)
    elif hasattr(value, "item") and value.numel() == 1:
        yield value.item()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def reaching(name: str) -> list[str]:
    """Return the arguments that reach an optimizer: whose values are in its groups, as it is made on a CPU.

    Of one that cannot be made there, those whose values its row passes to the class.
    """
    row, spec = OPTIMIZERS[name], spec_of(name)
    if CASES[name].refused:
        found = {*numbers_in({"lr": spec.learning_rate, **row.options(spec), "weight_decay": spec.weight_decay})}
    else:
        optimizer_class, options = row.make(spec)
        optimizer = build_optimizer(spec.model, optimizer_class, options, decayed_names(spec.model), spec.weight_decay)
        found = {*numbers_in(optimizer.param_groups)}
    return [argument for argument, value in SOUGHT.items() if any(isclose(value, each, rel_tol=1e-6) for each in found)]


ABBREVIATED = {("adam_beta1", "adam_beta2", "adam_epsilon"): "adam", ("adam_beta1", "adam_beta2"): "betas"}


def arguments_of(name: str) -> str:
    """Return the column of arguments."""
    found = tuple(reaching(name))
    adam = tuple(each for each in found if each.startswith("adam_"))
    others = [each for each in found if not each.startswith("adam_")]
    return ", ".join([*others[:1], *([ABBREVIATED[adam]] if adam else []), *others[1:]])


def class_of(row: Row) -> str:
    """Return the column of the class."""
    return f"`{str(row.target).replace(':', '.')}`" if row.target else ""


def line_of(name: str) -> str:
    """Return the row of a name."""
    row, case = OPTIMIZERS[name], CASES[name]
    if case.refused:
        result = f"refused on a CPU: {case.refused}"
        return f"| `{name}` | {class_of(row)} | {arguments_of(name) if row.target else ''} | | | {result} |"
    options = case.arguments.get("optim_args", "")
    notes = [
        f"tried with `{options}`" if options else "",
        f"transformers: other losses, because {case.differs}" if case.differs else "",
        f"not compared with transformers: {case.alone}" if case.alone else "",
        case.note,
    ]
    noted = "; ".join(filter(None, notes))
    return f"| `{name}` | {class_of(row)} | {arguments_of(name)} | bit-identical | yes | {noted} |"


def packages() -> Iterator[str]:
    """Yield the lines of the table of packages."""
    yield "| package | version | extra |"
    yield "|---|---|---|"
    extras = {row.package: row.extra for row in OPTIMIZERS.values() if row.target and row.package != "hexloop"}
    for package, extra in sorted(extras.items()):
        try:
            tried = version(package)
        except ModuleNotFoundError:
            tried = "mapped only"
        installation = f"`hexloop[{extra}]`" if extra else "" if package == "torch" else f"`{package}`"
        yield f"| {package} | {tried} | {installation} |"


def table() -> str:
    """Return both tables."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = [line_of(name) for name in OPTIMIZERS]
    logging.disable(logging.NOTSET)
    head = ["| name | class | arguments | resume | DDP, 2 processes | notes |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines, "", *packages(), ""])


def page() -> str:
    """Return the page with both tables."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
