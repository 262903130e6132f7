"""The packages that trackers need."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from hexloop.domain.errors import ConfigurationError


def require(module: str, package: str, extra: str, at_least: str | None = None) -> None:
    """Check that `module` can be imported and that the distribution `package` is no older than `at_least`.

    Nothing is imported. Raises ConfigurationError, which names the extra to install.
    """
    remedy = f"pip install 'hexloop[{extra}]'"
    if not _is_found(module):
        raise ConfigurationError(f"Logging to {extra} requires {package}, which is not installed; {remedy}.")
    if at_least is None:
        return
    try:
        found = version(package)
    except PackageNotFoundError:  # a copy that pip has not installed
        return
    if _numbers(found) < _numbers(at_least):
        raise ConfigurationError(f"Logging to {extra} requires {package} {at_least} or later, not {found}; {remedy}.")


def _is_found(module: str) -> bool:
    """Return whether a module can be imported; a folder of its name, such as the one that wandb writes, is not one."""
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):  # of a parent, or of a module that a test put in its place
        return False
    return spec is not None and spec.origin is not None


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])
