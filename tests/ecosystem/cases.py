"""The cases: programs written for transformers, which run unmodified and bit-identically on hexloop.

The cases of one subject are the list CASES of a module `cases_<subject>` in this folder.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from attrs import frozen

FOLDER = Path(__file__).parent
ENVIRONMENTS = FOLDER / "environments"
SCRIPTS = FOLDER / "scripts"
SMALLER_ENVIRONMENT = "libraries"
"""The environment of the smaller set, which `make test-all` creates."""


@frozen
class Case:
    """One run of a script in an environment.

    script, arguments: the file in `scripts`, and its command line without `--output_dir`, which is added. "{inputs}" in
    an argument stands for the folder with the inputs.
    inputs: what `scripts/tiny.py` writes into that folder first.
    processes: 1, or the number of processes that torchrun starts.
    smaller_set: whether `make test-all` runs the case, too.
    tolerance: None if both libraries agree to the last bit. Otherwise transformers' own two runs do not, and values
    agree within this relative difference.
    """

    name: str
    environment: str
    script: str
    arguments: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    processes: int = 1
    smaller_set: bool = False
    tolerance: float | None = None


def all_cases() -> list[Case]:
    """Return the cases of all subjects, in the order of the modules' names."""
    modules = [import_module(f"{__package__}.{path.stem}") for path in sorted(FOLDER.glob("cases_*.py"))]
    return [case for module in modules for case in module.CASES]
