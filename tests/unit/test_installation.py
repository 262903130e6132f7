"""Messages about missing packages name a command that installs them, and no other project."""

from __future__ import annotations

import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from hexloop.domain import installation
from hexloop.domain.installation import Installation, Requirement, how_to_install, install

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
