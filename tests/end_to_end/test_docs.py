"""The code and commands in the README and the documentation work."""

from __future__ import annotations

import ast
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from doctest import ELLIPSIS, DocTestParser, DocTestRunner
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import hexloop
import hexloop.adapters
import hexloop.ports
import hexloop.testing
from hexloop.app.command_line.parser import read_options
from tests.end_to_end.pages import ROOT, Block, blocks_of, commands_of, home_page, refreshed
from tests.warm_python import warm_python

PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md"))]
PATCHES = ROOT / "docs" / "how-to-add.md"
"""Its blocks change a copy of the source: `test_how_to_add.py` runs them."""
CHANGES = ROOT / "docs" / "changelog.md"
"""Its build includes CHANGELOG.md."""
RUNNABLE = [page for page in PAGES if page != PATCHES and any(block.language == "python" for block in blocks_of(page))]
QUICK = {"README", "index", "start", "checkpoints", "testing"}
"""Pages whose code `make test` runs, too."""

LANGUAGES = {"python", "sh", "yaml", "toml", "text", "diff"}
SUITES = sorted((ROOT / "docs" / "examples").glob("test_*.py"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_python(folder: Path, *words: str | Path, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`, where only installed packages can be imported.

    cold: nothing is imported yet, so that warnings of imports are seen.
    """
    command = [sys.executable if cold else warm_python(), *map(str, words)]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[] if page.stem in QUICK else [pytest.mark.matrix])
        for page in RUNNABLE
    ],
)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order, in an empty folder, without a warning."""
    pages = ROOT / "tests/end_to_end/pages.py"
    ended = run_python(tmp_path, "-W", "error", pages, page, cold=page.stem not in QUICK - {"testing"})
    assert ended.returncode == 0, ended.stderr[-5000:]


@pytest.mark.matrix
@pytest.mark.parametrize("suite", SUITES, ids=name_of)
def test_an_example_that_is_a_test_passes(suite: Path, tmp_path: Path) -> None:
    """It runs as in a user's project: next to the examples that it imports, without configuration."""
    for example in suite.parent.glob("*.py"):
        shutil.copy(example, tmp_path)
    ended = run_python(tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", suite.name, cold=True)
    assert ended.returncode == 0, ended.stdout[-5000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= 5


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_language_that_is_run_or_read(page: Path) -> None:
    """No block hides from the tests: each names its language, Python is not called text, and YAML can be read."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^ *```.*$", text, re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page)), "a block without a language, or within another one"
    for block in blocks_of(page):
        if block.language == "text" and page != PATCHES:
            assert not is_program(block.code), f"line {block.line}: make it a block of Python, which is run"
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.code), dict), f"line {block.line}"


def is_program(code: str) -> bool:
    """Return whether a text is a Python program that does something."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Import | ast.ImportFrom | ast.FunctionDef) for node in nodes)


def test_programs_are_told_from_output() -> None:
    """A call is a program; a recorded table and a command are none."""
    assert is_program("Trainer(model).train()")
    assert not is_program("[rank 0] the sum is 3")
    assert not is_program("hexloop train recipe.yaml --resume")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_a_page_exists(page: Path) -> None:
    """Make targets, commands with their options, recipes, examples and extras exist."""
    blocks = blocks_of(page)
    assert {block.language for block in blocks} <= LANGUAGES, "blocks in other languages are not checked"
    titles = {block.title for block in blocks}
    for words in (words for block in blocks if block.language == "sh" for words in commands_of(block)):
        check_command(words, titles)


def check_command(words: list[str], titles: set[str | None]) -> None:
    match words:
        case ["make", target]:
            assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["hexloop", *command] if "--help" in command:
            with pytest.raises(SystemExit, match="0"):
                read_options(command)
        case ["hexloop", *options]:
            read = read_options(options)
            assert read.unknown == [], words
            if (file := getattr(read, "recipe", getattr(read, "program", None))) is not None:
                assert file in titles or (ROOT / file).exists(), words
        case ["torchrun", *_, file]:
            assert file in titles, words
        case ["python", file]:
            assert file in titles or (ROOT / file).exists(), words
        case ["python", "-m", "pytest", *files]:
            assert all(file in titles for file in files), words
        case ["pip", "install", wanted]:
            assert wanted.startswith("."), "a package index may have another project of that name"
            extras = re.search(r"\[(.*)\]", wanted)
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(extras[1].split(",") if extras else ()) <= known.keys(), words
        case _:
            raise AssertionError(f"the command {words} is not checked")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_shows_the_code_of_its_files(page: Path) -> None:
    """Files are shown as they are, and not only included by the site's build; `pages.py --refresh` copies them."""
    text = page.read_text(encoding="utf-8")
    assert refreshed(text) == text
    if page != CHANGES:
        assert "--8<--" not in text, "readers of the page itself would not see the code"


def test_the_home_page_is_the_readme() -> None:
    """`python tests/end_to_end/pages.py --home` writes it again."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "index.md").read_text(encoding="utf-8") == home_page(readme)
    assert home_page("[a](docs/b.md) ![c](docs/d.png) [E](LICENSE)") == "[a](b.md) ![c](d.png) E (`LICENSE`)"


# Examples in docstrings

EXAMPLES = (
    *("Trainer", "Trainer.train", "Trainer.stream", "Trainer.astream", "Trainer.evaluate", "Trainer.predict"),
    *("Trainer.log_media", "Trainer.hyperparameter_search", "TrainingArguments", "TrainerCallback"),
    *("SFTTrainer", "Seq2SeqTrainer", "testing.simulated_run", "testing.assert_resume_exact", "testing.least_squares"),
    *("testing.MemoryStorage", "testing.FaultyStorage", "testing.ManualClock", "testing.SimulatedWorld"),
    *("testing.RecordingLogger", "testing.ManualInterrupts", "testing.MemoryHub"),
)
"""What has an example in its docstring, by its name in the package."""


def run_example(name: str, names: dict[str, Any]) -> list[str]:
    """Run the example of a docstring with these names, to which its own are added; return what went wrong."""
    found: Any = hexloop
    for part in name.split("."):
        found = getattr(found, part)
    example = DocTestParser().get_doctest(inspect.getdoc(found) or "", names, name, None, None)
    assert example.examples, name
    wrong: list[str] = []
    DocTestRunner(verbose=False, optionflags=ELLIPSIS).run(example, out=wrong.append, clear_globs=False)
    names.update(example.globs)
    return wrong


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_has_the_output_that_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of methods, and of what works with a Trainer, follow the example of `Trainer`."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    if name.startswith("Trainer") or name == "testing.assert_resume_exact":
        assert run_example("Trainer", names) == []
    assert run_example(name, names) == []


def test_every_example_of_a_docstring_is_run() -> None:
    """No example is only shown."""
    files = [path for folder in ("app", "adapters", "domain", "ports") for path in (ROOT / folder).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    assert sum(text.count("\n    Examples:\n") + text.count("\n        Examples:\n") for text in texts) == len(EXAMPLES)


def test_a_wrong_output_of_an_example_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an example that raises."""
    for code in (">>> 1 + 1\n3", ">>> 1 / 0"):
        monkeypatch.setattr(hexloop.get_last_checkpoint, "__doc__", code)
        assert run_example("get_last_checkpoint", {}) != []


def test_a_changed_file_is_detected(tmp_path: Path) -> None:
    """A block that differs from its file is replaced by `--refresh`; other blocks stay."""
    example = "docs/examples/trigram.py"
    page = tmp_path / "page.md"
    page.write_text(f"```python\nother = 1\n```\n\n<!-- The code of {example} -->\n\n```python\nold = 1\n```\n\nEnd.\n")
    assert refreshed(page.read_text()) != page.read_text()
    assert run_python(tmp_path, ROOT / "tests/end_to_end/pages.py", "--refresh", page).returncode == 0
    other, shown = blocks_of(page)
    assert other.code == "other = 1\n"
    assert shown.code == (ROOT / example).read_text()
    assert page.read_text().endswith("```\n\nEnd.\n")


# Import paths of adapters

ADAPTERS = ROOT / "docs" / "adapters.md"
INJECTED = ("Device", "Precision", "Parallelism", "Collectives", "Storage", "Hub", "Logger", "Clock", "Interrupts")


def listed_adapters() -> dict[str, str]:
    """Return the module of each adapter that the page lists, by name."""
    rows = re.findall(r"^\| (`[A-Z].*?) \| `(hexloop\.adapters[\w.]*)` \|$", ADAPTERS.read_text(), re.MULTILINE)
    return {name: module for names, module in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_listed_adapter_is_imported_from_its_module() -> None:
    """The page has the module of every adapter that it names."""
    listed = listed_adapters()
    for name, module in listed.items():
        assert inspect.isclass(getattr(import_module(module), name)), (module, name)
    table = ADAPTERS.read_text().split("Import them from")[0]
    named = set(re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", table))
    assert named <= listed.keys()


def test_every_adapter_is_listed() -> None:
    """Each class in hexloop.adapters with the methods of a port that can be passed to the Trainer."""
    modules = [import_module(found.name) for found in pkgutil.iter_modules(hexloop.ports.__path__, "hexloop.ports.")]
    ports_of = {name: kind for module in modules for name, kind in vars(module).items()}
    members = {port: {name for name in vars(ports_of[port]) if name[0] != "_"} for port in INJECTED}
    listed, missing = listed_adapters(), []
    for found in pkgutil.walk_packages(hexloop.adapters.__path__, "hexloop.adapters."):
        module = import_module(found.name)
        for name, kind in vars(module).items():
            if not inspect.isclass(kind) or kind.__module__ != found.name or name.startswith("_"):
                continue
            is_device = any("Device" in base.__name__ for base in kind.__mro__)  # these set two members in __init__
            instances = {*dir(kind), *(("name", "capabilities") if is_device else ())}
            ports = [port for port, wanted in members.items() if wanted <= instances]
            if ports and listed.get(name) != found.name and name != "TorchDevice":  # the base of those that are listed
                missing.append((found.name, name, ports))
    assert not missing


def test_wrong_blocks_are_detected(tmp_path: Path) -> None:
    """The checks above fail on an error in a page's code, and on commands that do not exist."""
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nright = 1\n```\n\n```python\nassert right == 2\n```\n")
    ended = run_python(tmp_path, ROOT / "tests/end_to_end/pages.py", page)
    assert ended.returncode == 1
    assert 'page.md", line 8' in ended.stderr

    page.write_text("```text\n$ hexloop checkpoints list .\nNo checkpoint is anywhere.\n```\n")
    ended = run_python(tmp_path, ROOT / "tests/end_to_end/pages.py", page)
    assert ended.returncode == 1
    assert "There is no checkpoint in ." in ended.stderr

    for wrong in (
        "make trian",
        "hexloop train no.yaml",
        "hexloop doctor --jsno",
        "torchrun no.py",
        "pip install 'hexloop[none]'",
        "ls",
    ):
        (words,) = commands_of(Block("sh", None, 1, wrong))
        with pytest.raises((AssertionError, SystemExit)):
            check_command(words, set())


def test_no_page_links_to_a_missing_file() -> None:
    """Links in the README are checked here; the site's are checked by its build."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(targets) > 5
    assert [target for target in targets if not (ROOT / target).exists()] == []
