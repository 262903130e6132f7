"""The storage that a path or a URL stands for: hexloop's own, an installed package's, or one that fsspec reaches."""

from __future__ import annotations

import os
import re
import uuid
from urllib.parse import urlsplit
from urllib.request import url2pathname

from hexloop.adapters.contents.checkpoint.contents import RUN_SETUP, RUN_STATE
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.plugins import find_plugin, plugin_names
from hexloop.domain.checkpoints.names import checkpoint_name, step_of
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.ports.storage import Storage

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
"""A scheme has two characters or more: one would be a drive of Windows."""


def scheme_of(location: str | os.PathLike[str]) -> str | None:
    """The scheme of a URL, in small letters; None for a path."""
    match = _URL.match(os.fspath(location))
    return match[1].lower() if match else None


def is_elsewhere(location: str | os.PathLike[str]) -> bool:
    """Whether a location is no folder of this machine."""
    return scheme_of(location) not in (None, "file")


def as_location(location: str | os.PathLike[str]) -> str:
    """A path made absolute, a URL without the slashes at its end."""
    location = os.fspath(location)
    if is_elsewhere(location):
        return location.rstrip("/")
    return os.path.abspath(_path_of(location))


def split_location(location: str | os.PathLike[str]) -> tuple[str, str]:
    """The folder that a checkpoint's path or URL is in, and the checkpoint's name."""
    whole = as_location(location)
    if not is_elsewhere(whole):
        return os.path.split(whole)
    parent, _, name = whole.rpartition("/")
    return parent, name


def is_missing(location: str | os.PathLike[str]) -> bool:
    """Whether a location is a folder of this machine that is not there; of a URL nobody knows before it is read."""
    return not is_elsewhere(location) and not os.path.isdir(as_location(location))


def joined(location: str | os.PathLike[str], name: str) -> str:
    """The path or URL of something in a folder."""
    location = os.fspath(location)
    return f"{location.rstrip('/')}/{name}" if is_elsewhere(location) else os.path.join(_path_of(location), name)


def storage_for(location: str | os.PathLike[str], digest: str = "xxh3-128") -> Storage:
    """A storage for what is in a folder, given by its path or URL; nothing is reached for yet.

    A package offers one for a scheme by an entry point of that name in the group "hexloop.storages"; it is called with
    the URL. Every other scheme is fsspec's. digest: see `LocalStorage`; an installed package's chooses its own.
    Raises ConfigurationError, with what to install, where a scheme is not known here, or a URL holds a password.
    """
    location, scheme = os.fspath(location), scheme_of(location)
    if scheme is None or scheme == "file":
        return LocalStorage(_path_of(location), digest)
    if urlsplit(location).password:
        raise ConfigurationError(
            [
                f"You chose a URL of {scheme}:// with a password in it, but it would be written to logs and "
                "checkpoints; leave it out, and give it by the environment, a configuration file of fsspec, or "
                "FsspecStorage(url, options)."
            ]
        )
    plugin = find_plugin("storages", scheme)
    if plugin is not None:
        storage: Storage = plugin(location)
        return storage
    problem = _problem_of_fsspec(scheme)
    if problem:
        raise ConfigurationError([f"You chose {location}, but {problem}"])
    from hexloop.adapters.storage.fsspec import FsspecStorage

    return FsspecStorage(location, digest=digest)


def refuse_unreachable(location: str, storage: Storage) -> None:
    """Raise ConfigurationError where nothing can be written below a URL, found by writing something small."""
    name = f".hexloop-{uuid.uuid4().hex}"
    try:
        storage.write(name, [b"can this be written to?"])
        storage.remove(name)
    except StorageError as error:
        raise ConfigurationError(
            [f"You chose {location} for checkpoints, but it cannot be written to: {error}"]
        ) from error


def _problem_of_fsspec(scheme: str) -> str | None:
    """Why fsspec cannot reach what has a scheme, and what to do; None where it can."""
    try:
        from fsspec import available_protocols, get_filesystem_class
    except ImportError:
        return "fsspec is not installed; install hexloop[object-stores]."
    if scheme not in available_protocols():
        offered = f" ({', '.join(plugin_names('storages'))})" if plugin_names("storages") else ""
        return (
            f"neither fsspec nor an installed package{offered} knows {scheme}://; check the URL, install the package "
            "that offers it, or pass storage=... to the Trainer."
        )
    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        advice = "install hexloop[object-stores]" if scheme in ("s3", "s3a") else "install what it asks for"
        return f"what fsspec needs for {scheme}:// is not installed ({error}); {advice}."
    return None


def _path_of(location: str) -> str:
    """Raises ConfigurationError where a URL of a file names another machine, as one with too few slashes does."""
    if scheme_of(location) != "file":
        return os.path.expanduser(location)
    url = urlsplit(location)
    if url.netloc not in ("", "localhost"):
        raise ConfigurationError(
            [
                f"You chose {location}, but that means the folder {url.path or '/'} on a machine named {url.netloc}; "
                f"write file:///absolute/path, or the path alone."
            ]
        )
    return url2pathname(url.path)


def get_last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The path or URL of the folder "checkpoint-<step>" with the highest step in `folder`; None where there is none.

    Only names are looked at; what is in it is verified where it is loaded. Raises FileNotFoundError where a folder of
    this machine is not there.
    """
    folder = os.fspath(folder)
    if is_elsewhere(folder):
        names = [entry.name for entry in storage_for(folder).list("") if entry.is_folder]
    else:
        names = [entry.name for entry in os.scandir(as_location(folder)) if entry.is_dir()]
    steps = [step for step in map(step_of, names) if step is not None]
    return joined(folder, checkpoint_name(max(steps))) if steps else None


KEEPERS = ("optimizer", "scheduler", "scaler", "losses", "data", "random")
"""Who keeps something between steps, besides the model."""

TRAINER_STATE = "trainer_state.json"

_KEPT = re.compile(rf"({'|'.join(KEEPERS)})(-rank-\d{{5}}|-\d{{5}}-of-\d{{5}})?\.(json|safetensors)")


def is_of_run(path: str) -> bool:
    """Whether a file of this name says how a run stands, be it written by one process or by each of several."""
    return path in (RUN_STATE, RUN_SETUP, TRAINER_STATE) or _KEPT.fullmatch(path) is not None
