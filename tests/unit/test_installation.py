"""Messages about missing packages name a command that installs them, and no other project."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from hexloop.domain import installation
from hexloop.domain.installation import Installation, Installations, Requirement, how_to_install, install

ROOT = Path(__file__).parents[2]

DECLARED = [
    Requirement("torch", ">=2.9"),
    Requirement("wandb", ">=0.20", "wandb"),
    Requirement("fsspec", ">=2025.3", "object-stores"),
    Requirement("s3fs", ">=2025.3", "object-stores"),
    Requirement("ray", ">=2.40", "ray", "[tune]"),
    Requirement("azureml-core", ">=1.50", "azure-ml"),
]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "requirements", lambda: iter(DECLARED))
    monkeypatch.setattr(installation, "installation", Installation)
    monkeypatch.setattr(installation, "_is_installed", lambda name: name in ("fsspec", "torch"))


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("extra", "packages", "expected"),
    [
        ("wandb", (), "pip install 'wandb>=0.20'"),
        ("ray", (), "pip install 'ray[tune]>=2.40'"),
        ("azure_ml", (), "pip install 'azureml-core>=1.50'"),
        ("object-stores", (), "pip install 's3fs>=2025.3'"),
        ("object-stores", ("fsspec",), "pip install 'fsspec>=2025.3'"),
        ("peft", ("peft",), "pip install peft"),
        ("peft", (), "pip install peft"),
    ],
)
def test_the_command_names_the_packages(extra: str, packages: tuple[str, ...], expected: str) -> None:
    """Those of the extra that are missing, or those that the message is about, in the versions that hexloop takes."""
    assert install(extra, *packages) == expected
    assert how_to_install(extra, *packages) == f"run `{expected}` (see docs/troubleshooting.md#missing-package)"


@pytest.mark.parametrize(
    ("installer", "expected"),
    [
        ("uv", "uv pip install 'wandb>=0.20'"),
        ("conda", "conda install 'wandb>=0.20'"),
        ("poetry", "pip install 'wandb>=0.20'"),
    ],
)
def test_the_command_is_that_of_the_installer(installer: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With which hexloop was installed."""
    monkeypatch.setattr(installation, "installation", lambda: Installation(installer))
    assert install("wandb") == expected


@pytest.mark.usefixtures("declared")
def test_a_message_with_fields_names_the_command_of_an_extra() -> None:
    """In braces, as in those about combinations of arguments."""
    text = "The tracker needs a package: {install[wandb]}."
    expected = "run `pip install 'wandb>=0.20'` (see docs/troubleshooting.md#missing-package)"
    assert text.format(install=Installations()) == f"The tracker needs a package: {expected}."


@pytest.mark.parametrize("installer", ["pip", "uv", "conda"])
@pytest.mark.parametrize("extras", [[], ["wandb"], ["trackers", "wandb"]])
def test_doctor_installs_hexloop_from_its_own_source_only(installer: str, extras: list[str]) -> None:
    """An index may have another project of that name."""
    for how in (
        Installation(installer),
        Installation(installer, "/src/hexloop", True),
        Installation(installer, "git+x"),
    ):
        words = shlex.split(how.command("wandb", ">=0.20", extras))
        assert not any(re.match(r"hexloop(\[|$)", word) and " @ " not in word for word in words)


def test_no_message_installs_hexloop_by_name() -> None:
    """In none of the sources."""
    for folder in ("app", "adapters", "domain", "ports", "src"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"install[^\n]{0,30}hexloop\[", text.replace("{f'hexloop{chosen} @", "")), file


def only_packages_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Let only the packages of a folder be found: hexloop with these files of metadata, or none."""
    for name, text in files.items():
        information = folder / "hexloop-1.0.dist-info"
        information.mkdir(exist_ok=True)
        (information / name.replace("_json", ".json")).write_text(text)
    monkeypatch.setattr(sys, "path", [str(folder)])


def test_a_copy_that_is_not_installed_knows_the_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message still has a command: with pip, and without versions."""
    only_packages_in(tmp_path, monkeypatch)
    assert [*installation.requirements()] == []
    assert installation.installation() == Installation()
    assert install("object-stores", "fsspec", "s3fs") == "pip install fsspec s3fs"
    assert install("peft") == "pip install peft"


@pytest.mark.parametrize(
    "damaged",
    ['{"url": ', "[]", '{"dir_info": 3}', '{"url": "x", "vcs_info": {}}', '{"url": 3, "dir_info": {"editable": true}}'],
)
def test_a_record_of_the_source_that_is_damaged_is_left_out(
    damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is about a missing package, and not about the metadata of hexloop."""
    text = 'Name: hexloop\nRequires-Dist: wandb>=0.20; extra == "wandb"\n'
    only_packages_in(tmp_path, monkeypatch, METADATA=text, INSTALLER="pip\n", direct_url_json=damaged)
    assert installation.installation() == Installation()
    assert install("wandb") == "pip install 'wandb>=0.20'"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, Installation("uv")),
        ({"url": "https://example.org/h.whl"}, Installation("uv", "https://example.org/h.whl")),
        (
            {"url": "https://example.org/h", "vcs_info": {"vcs": "git"}},
            Installation("uv", "git+https://example.org/h"),
        ),
    ],
)
def test_the_source_is_that_of_the_metadata(
    origin: dict[str, object] | None, expected: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the installer; a package index leaves no record of the source."""
    files = {} if origin is None else {"direct_url_json": json.dumps(origin)}
    only_packages_in(tmp_path, monkeypatch, METADATA="Name: hexloop\n", INSTALLER="UV\n", **files)
    assert installation.installation() == expected


def test_an_extra_that_joins_others_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names hexloop itself, which a package index may have from someone else."""
    lines = ["torch>=2.9", 'hexloop[ray,wandb]; extra == "all"', 'ray[tune]>=2.40; extra == "ray"', "rich"]
    text = "".join(f"Requires-Dist: {line}\n" for line in lines)
    only_packages_in(tmp_path, monkeypatch, METADATA=f"Name: hexloop\n{text}")
    assert [*installation.requirements()] == [
        Requirement("torch", ">=2.9"),
        Requirement("ray", ">=2.40", "ray", "[tune]"),
        Requirement("rich"),
    ]


def test_the_real_metadata_is_read() -> None:
    """Of the installed hexloop, if it is; none of the packages is hexloop itself."""
    try:
        metadata.distribution("hexloop")
    except metadata.PackageNotFoundError:
        pytest.skip("hexloop is run from its source")
    found = [*installation.requirements()]
    assert Requirement("tensorboard", ">=2.16", "tensorboard") in found
    assert "hexloop" not in {each.name for each in found}
    assert install("tensorboard") == "pip install 'tensorboard>=2.16'"
