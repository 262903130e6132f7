"""Call the function `_mp_fn` of a script, as transformers' xla_spawn does in each process that it starts.

    python -m hexloop.app.command_line.launch.function CORES SCRIPT [argument ...]

The script finds its arguments in `sys.argv`, and `--tpu_num_cores CORES` after them. The function is called with the
rank of this process.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FUNCTION = "_mp_fn"


def has_function(script: str) -> bool:
    """Return whether a script defines or imports the function; False also for one that cannot be read."""
    try:
        body = ast.parse(Path(script).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    return FUNCTION in {name for statement in body for name in _names(statement)}


def _names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module gives to something, as far as they can be a function's."""
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


def main(cores: str, script: str, arguments: list[str]) -> None:
    """Import the script as a module of its name, and call the function."""
    path = Path(script).resolve()
    sys.path.insert(0, str(path.parent))
    sys.argv = [script, *arguments, "--tpu_num_cores", cores]
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, FUNCTION)(int(os.environ.get("RANK", "0")))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
