"""Selection of a storage by path or URL."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.assembly.storage import (
    as_location,
    is_elsewhere,
    joined,
    refuse_unreachable,
    scheme_of,
    split_location,
    storage_for,
)
from hexloop.app.testing.contracts.storage import StorageContract
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
    """Install a package that offers a storage for sqlite:// by an entry point."""
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


class TestInstalledStorage(StorageContract):
    """A third-party storage for a URL scheme passes the suite of the port."""

    @pytest.fixture
    def storage(self, installed: None, tmp_path: Path) -> Storage:
        return storage_for(f"sqlite://{tmp_path}/checkpoints.sqlite")


def test_an_unknown_scheme_lists_the_installed_ones(installed: None) -> None:
    """The error lists the schemes that packages offer, and says how to add one."""
    with pytest.raises(ConfigurationError, match=r"an installed package \(sqlite\) supports nowhere://; check the URL"):
        storage_for("nowhere://bucket/run")


def test_a_path_is_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, relative or not, and file URLs use the local storage."""
    monkeypatch.chdir(tmp_path)
    for location in ("runs", tmp_path / "runs", f"file://{tmp_path}/runs", "C:runs/../runs"):
        assert isinstance(storage_for(location), LocalStorage)
        assert not is_elsewhere(location)
    assert storage_for(f"file://{tmp_path}/with%20space").capabilities.local_folder == str(tmp_path / "with space")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert storage_for("~/runs").capabilities.local_folder == str(tmp_path / "runs")


@pytest.mark.parametrize("function", [storage_for, as_location, split_location])
def test_a_file_url_with_a_host_is_refused(function: Callable[[str], object]) -> None:
    """A URL with too few slashes names a host; its path would be relative to the root of this machine."""
    with pytest.raises(ConfigurationError, match="the folder /a on a machine named runs; write file:///absolute/path"):
        function("file://runs/a")
    assert as_location("file://localhost/runs/a") == os.path.abspath("/runs/a")


@pytest.mark.parametrize(
    "location", ["s3://[bucket/a", "file://[::1/a", "s3://k:b@[]/a", "folder/a\0b", "file:///a\0b"]
)
def test_a_location_that_is_none_is_refused(location: str) -> None:
    """A URL that cannot be split, and a path with a null byte."""
    with pytest.raises(ConfigurationError, match=r"is not a valid URL|contains a null byte"):
        storage_for(location)


@pytest.mark.parametrize("function", [storage_for, as_location, split_location])
@pytest.mark.parametrize(
    "password", ["pass-word", "p@ss-word", "p/ss-word", "p?ss-word", "p#ss-word", "p ss-word", "[ss-word"]
)
@pytest.mark.parametrize("scheme", ["file", "nosuch", "simplecache::s3", "file\0", "https"])
def test_no_message_shows_a_password(function: Callable[[str], object], scheme: str, password: str) -> None:
    """Of a URL of any scheme, whatever is wrong with it."""
    raised = list[ConfigurationError]()
    try:
        function(f"{scheme}://user:{password}@host/x")
    except ConfigurationError as error:
        raised.append(error)
    assert raised or function is not storage_for
    for each in raised:
        assert "ss-word" not in "".join([*traceback.format_exception_only(each), *map(str, each.args)])
        assert each.__cause__ is None


def test_a_url_uses_fsspec() -> None:
    """The chosen digest is the one that the storage computes."""
    storage = storage_for(f"memory://{uuid.uuid4().hex}/run", digest="blake2b")
    assert isinstance(storage, FsspecStorage)
    assert storage.write("a", [b"a"]).digest.startswith("blake2b:")


@pytest.mark.parametrize(
    ("location", "scheme"),
    [("s3://bucket/run", "s3"), ("S3://bucket", "s3"), ("runs/a", None), ("C://runs", None), ("a b://c", None)],
)
def test_a_scheme_has_at_least_two_characters(location: str, scheme: str | None) -> None:
    """A scheme of one character would be a Windows drive."""
    assert scheme_of(location) == scheme


def test_a_location_is_split_and_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's folder and name are found in a path and in a URL, with or without trailing slashes."""
    monkeypatch.chdir(tmp_path)
    assert split_location("s3://bucket/run/checkpoint-5//") == ("s3://bucket/run", "checkpoint-5")
    assert split_location("run/checkpoint-5/") == (str(tmp_path / "run"), "checkpoint-5")
    assert split_location(f"file://{tmp_path}/run/checkpoint-5") == (str(tmp_path / "run"), "checkpoint-5")
    assert joined("s3://bucket/run/", "checkpoint-5") == "s3://bucket/run/checkpoint-5"
    assert joined("run", "checkpoint-5") == "run/checkpoint-5"
    assert as_location("s3://bucket/run/") == "s3://bucket/run"


def test_a_password_in_a_url_is_refused() -> None:
    """It would be written to logs and checkpoints; the error does not show it either."""
    with pytest.raises(ConfigurationError, match="contains a password") as raised:
        storage_for("ftp://someone:pa$$word@host/run")
    assert "pa$$word" not in str(raised.value)


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If fsspec knows a scheme but its library is missing, the error says what to install."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install 's3fs>="):
        storage_for("s3://bucket/run")


def test_a_read_only_location_is_refused() -> None:
    """A location that cannot be written is refused before the first save, and the check leaves no files."""
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        refuse_unreachable("data://x", storage_for("data://x"))
    storage = storage_for(f"memory://{uuid.uuid4().hex}/run")
    refuse_unreachable("memory://", storage)
    assert storage.list("") == ()
