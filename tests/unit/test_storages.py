"""Which storage a path or a URL stands for."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.testing.contracts.storage import StorageContract
from hexloop.app.wiring.storage import (
    as_location,
    is_elsewhere,
    joined,
    refuse_unreachable,
    scheme_of,
    split_location,
    storage_for,
)
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.storage import Storage

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

PLUGIN = """
from sqlite_storage import SQLiteStorage

def from_url(url):
    return SQLiteStorage(url.removeprefix("sqlite://"))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers a storage for sqlite:// by an entry point, as an installer leaves it."""
    site = tmp_path / "site"
    information = site / "sqlite_for_hexloop-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-for-hexloop\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[hexloop.storages]\nsqlite = sqlite_for_hexloop:from_url\n")
    (site / "sqlite_for_hexloop.py").write_text(PLUGIN)
    shutil.copy(EXAMPLES / "sqlite_storage.py", site)
    monkeypatch.syspath_prepend(site)
    yield
    for name in ("sqlite_for_hexloop", "sqlite_storage"):
        sys.modules.pop(name, None)


class TestAnInstalledStorage(StorageContract):
    """What a third party offers for a scheme passes the suite of the port."""

    @pytest.fixture
    def storage(self, installed: None, tmp_path: Path) -> Storage:
        return storage_for(f"sqlite://{tmp_path}/checkpoints.sqlite")


def test_an_installed_storage_is_named_where_another_is_missing(installed: None) -> None:
    """The error for an unknown scheme says which ones packages offer, and what to do."""
    with pytest.raises(ConfigurationError, match=r"an installed package \(sqlite\) supports nowhere://; check the URL"):
        storage_for("nowhere://bucket/run")


def test_a_path_is_a_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, relative or not, and a URL of a file, are kept by the storage that forces what it writes to the disk."""
    monkeypatch.chdir(tmp_path)
    for location in ("runs", tmp_path / "runs", f"file://{tmp_path}/runs", "C:runs/../runs"):
        assert isinstance(storage_for(location), LocalStorage)
        assert not is_elsewhere(location)
    assert storage_for(f"file://{tmp_path}/with%20space").capabilities.local_folder == str(tmp_path / "with space")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert storage_for("~/runs").capabilities.local_folder == str(tmp_path / "runs")


@pytest.mark.parametrize("function", [storage_for, as_location, split_location])
def test_a_file_on_another_machine_is_refused(function: Callable[[str], object]) -> None:
    """A URL with too few slashes names one; its path would be somewhere at the root of this machine."""
    with pytest.raises(ConfigurationError, match="the folder /a on a machine named runs; write file:///absolute/path"):
        function("file://runs/a")
    assert as_location("file://localhost/runs/a") == os.path.abspath("/runs/a")


def test_a_url_is_reached_by_fsspec() -> None:
    """The digest that was chosen is the one that it computes."""
    storage = storage_for(f"memory://{uuid.uuid4().hex}/run", digest="blake2b")
    assert isinstance(storage, FsspecStorage)
    assert storage.write("a", [b"a"]).digest.startswith("blake2b:")


@pytest.mark.parametrize(
    ("location", "scheme"),
    [("s3://bucket/run", "s3"), ("S3://bucket", "s3"), ("runs/a", None), ("C://runs", None), ("a b://c", None)],
)
def test_a_scheme_has_two_characters_or_more(location: str, scheme: str | None) -> None:
    """One would be a drive of Windows."""
    assert scheme_of(location) == scheme


def test_a_location_is_split_and_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's folder and name are found in a path and a URL, with slashes at the end or not."""
    monkeypatch.chdir(tmp_path)
    assert split_location("s3://bucket/run/checkpoint-5//") == ("s3://bucket/run", "checkpoint-5")
    assert split_location("run/checkpoint-5/") == (str(tmp_path / "run"), "checkpoint-5")
    assert split_location(f"file://{tmp_path}/run/checkpoint-5") == (str(tmp_path / "run"), "checkpoint-5")
    assert joined("s3://bucket/run/", "checkpoint-5") == "s3://bucket/run/checkpoint-5"
    assert joined("run", "checkpoint-5") == "run/checkpoint-5"
    assert as_location("s3://bucket/run/") == "s3://bucket/run"


def test_a_password_in_a_url_is_refused() -> None:
    """It would end up in logs and checkpoints; the error does not show it either."""
    with pytest.raises(ConfigurationError, match="contains a password") as raised:
        storage_for("ftp://someone:pa$$word@host/run")
    assert "pa$$word" not in str(raised.value)


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fsspec knows a scheme, but what it needs for it is missing, the error says what to install."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)
    with pytest.raises(ConfigurationError, match=r"install hexloop\[object-stores\]"):
        storage_for("s3://bucket/run")


def test_what_cannot_be_written_to_is_told() -> None:
    """A place that only gives is refused before anything is saved to it; nothing is left of a trial that works."""
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        refuse_unreachable("data://x", storage_for("data://x"))
    storage = storage_for(f"memory://{uuid.uuid4().hex}/run")
    refuse_unreachable("memory://", storage)
    assert storage.list("") == ()
