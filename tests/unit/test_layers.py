"""The import contracts hold and detect violations, and the inner layers import without a framework."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))

IMPORT_EVERYTHING_BELOW = """
import importlib, pkgutil, sys
package_name, *unimportable = sys.argv[1:]
sys.modules.update(dict.fromkeys(unimportable))
package = importlib.import_module(package_name)
for module in pkgutil.walk_packages(package.__path__, package_name + "."):
    importlib.import_module(module.name)
print(*sorted(name for name, module in sys.modules.items() if module and (name + ".").startswith(package_name + ".")))
"""


def import_everything_below(
    package: str, *unimportable: str, path: Path = ROOT / "src"
) -> subprocess.CompletedProcess[str]:
    """Import each module of a package in a new process in which some other modules cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING_BELOW, package, *unimportable],
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("layer", ["domain", "ports"])
def test_inner_layers_need_no_framework(layer: str) -> None:
    """Every module of the domain and of the ports imports without torch, numpy and accelerate."""
    result = import_everything_below(f"hexloop.{layer}", "torch", "numpy", "accelerate")

    assert result.returncode == 0, result.stderr
    files = (ROOT / layer).rglob("*.py")
    modules = {".".join(["hexloop", *file.relative_to(ROOT).with_suffix("").parts]) for file in files}
    assert set(result.stdout.split()) == {module.removesuffix(".__init__") for module in modules}


def test_a_framework_import_is_detected(tmp_path: Path) -> None:
    """A package with a module that imports torch fails to import without torch."""
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "__init__.py").touch()
    (tmp_path / "sample" / "part.py").write_text("import torch.nn\n")

    result = import_everything_below("sample", "torch", path=tmp_path)

    assert result.returncode == 1
    assert "ModuleNotFoundError: No module named 'torch.nn'" in result.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what the import contracts read, with its links."""
    for folder in ("src", "domain", "ports", "adapters", "app", "tests/architecture"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/__init__.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def check_contracts(tree: Path, *only: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter over a tree, with all contracts or only those with the given ids."""
    chosen = [argument for contract in only for argument in ("--contract", contract)]
    return subprocess.run(
        [SCRIPTS / "lint-imports", "--no-logo", "--no-cache", *chosen],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold_in_a_copy(tree: Path) -> None:
    """An unchanged copy of the tree keeps every contract, so the violations below are caused by the added files."""
    result = check_contracts(tree)

    assert result.returncode == 0, result.stdout
    assert " 0 broken" in result.stdout


ONE_ADAPTER_IMPORTS_ANOTHER = {
    "adapters/planted/__init__.py": "",
    "adapters/planted/importer.py": "import hexloop.adapters.{imported}\n",
    "adapters/planted/technology.py": "",
    "adapters/planted_too/__init__.py": "",
    "adapters/planted_too/technology.py": "",
}


def one_adapter_imports(imported: str) -> dict[str, str]:
    """Return two new adapter folders, in the first of which a module imports another adapter."""
    return {path: text.format(imported=imported) for path, text in ONE_ADAPTER_IMPORTS_ANOTHER.items()}


def violation(contract: str, files: dict[str, str], name: str) -> object:
    """Return a contract and the files that violate it, one of many combinations."""
    return pytest.param(contract, files, id=f"{contract}: {name}", marks=pytest.mark.matrix)


VIOLATIONS = [
    pytest.param("plain-domain", {"domain/planted.py": "import torch\n"}, id="plain-domain: torch"),
    violation("plain-domain", {"domain/planted.py": "def f():\n    from numpy import array\n"}, "numpy in a function"),
    violation("plain-domain", {"domain/planted/__init__.py": "", "domain/planted/x.py": "import yaml\n"}, "yaml below"),
    violation("plain-domain", {"domain/planted.py": "from hexloop import Trainer\n"}, "the front door"),
    violation("plain-ports", {"ports/planted.py": "import accelerate.state\n"}, "accelerate"),
    violation("plain-ports", {"ports/planted.py": "import hexloop.domain.errors\n"}, "the domain"),
    violation("layers", {"ports/planted.py": "from hexloop.domain import errors\n"}, "ports import the domain"),
    violation("layers", {"domain/planted.py": "import hexloop.adapters\n"}, "the domain imports adapters"),
    violation("layers", {"domain/planted.py": "import hexloop.app\n"}, "the domain imports the app"),
    violation("layers", {"adapters/planted.py": "def f():\n    import hexloop.app\n"}, "an adapter imports the app"),
    violation(
        "front-door", {"adapters/planted.py": "from hexloop import Trainer\n"}, "an adapter imports the front door"
    ),
    violation(
        "layers",
        {"app/planted.py": "import hexloop.testing\n", "src/hexloop/testing.py": ""},
        "the app imports the test kit",
    ),
    violation("layers", {"src/hexloop/planted.py": ""}, "a module in no layer"),
    violation(
        "assembly",
        {"src/hexloop/__init__.py": "import hexloop.adapters.planted\n", "adapters/planted.py": ""},
        "the front door imports an adapter",
    ),
    violation("assembly", {"domain/planted.py": "import hexloop.adapters\n"}, "the domain imports adapters"),
    violation(
        "ports-apart", one_adapter_imports("planted_too.technology"), "one port's adapter imports another port's"
    ),
    violation("technologies-apart", one_adapter_imports("planted.technology"), "one technology imports another"),
    violation(
        "no-cycles",
        {
            "domain/planted.py": "import hexloop.domain.planted_too\n",
            "domain/planted_too.py": "import hexloop.domain.planted\n",
        },
        "two modules import each other",
    ),
]


@pytest.mark.parametrize(("contract", "files"), VIOLATIONS)
def test_an_added_violation_breaks_its_contract(tree: Path, contract: str, files: dict[str, str]) -> None:
    """A contract fails and names the module if a forbidden import is added."""
    for path, text in files.items():
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text(text)

    result = check_contracts(tree, contract)

    assert result.returncode == 1
    assert "0 kept, 1 broken" in result.stdout, result.stdout + result.stderr
    assert "planted" in result.stdout


@pytest.mark.parametrize("line", ["import domain", "from ports.clock import Clock", "from . import plan"])
def test_bare_folder_names_and_relative_imports_are_refused(line: str) -> None:
    """Ruff refuses both, so that every module has one name."""
    result = subprocess.run(
        [SCRIPTS / "ruff", "check", "--select", "TID", "--stdin-filename", "domain/planted.py", "-"],
        cwd=ROOT,
        input=f"{line}\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert "TID25" in result.stdout
