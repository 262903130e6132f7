"""How a missing package is installed: the command, with the package's own name and the versions that hexloop takes.

Commands do not name hexloop itself unless it is known where it came from: a package index may have another project of
that name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from urllib.parse import urlsplit
from urllib.request import url2pathname

from attrs import frozen

from hexloop.domain.wording import troubleshooting

REQUIREMENT = re.compile(
    r"""(?P<name>[\w.-]+)(?P<options>\[.*?])?(?P<wanted>[^;]*)(;.*extra == ["'](?P<extra>[\w-]+)["'])?"""
)


@frozen
class Requirement:
    """A package that hexloop needs, or one of its extras does.

    wanted: the versions, such as ">=1.2". options: the package's own extras, such as "[tune]".
    """

    name: str
    wanted: str = ""
    extra: str | None = None
    options: str = ""


@frozen
class Installation:
    """How hexloop was installed.

    installer: "pip", "uv", "conda" or another one. source: the folder or URL that it came from; None for a package
    index, or if it is not known. editable: whether the source is a folder whose files are used in place.
    """

    installer: str = "pip"
    source: str | None = None
    editable: bool = False

    def command(self, name: str, wanted: str, extras: Sequence[str]) -> str:
        """Return the command that installs a package which hexloop or the first fitting of its extras needs."""
        if self.source is None or not extras or self.installer == "conda":  # which has no extras
            return self.plain_command(f"{name}{wanted}", upgrade=True)
        chosen = f"[{name if name in extras else extras[0]}]"
        if self.editable:
            return f"{self._tool} --upgrade -e {shlex.quote(self.source + chosen)}"
        return f"{self._tool} --upgrade {shlex.quote(f'hexloop{chosen} @ {self.source}')}"

    def plain_command(self, *packages: str, upgrade: bool = False) -> str:
        """Return the command that installs packages, each with the wanted versions after its name."""
        quoted = " ".join(map(shlex.quote, packages))
        if self.installer == "conda":
            return f"conda install {quoted}"
        return f"{self._tool} {'--upgrade ' if upgrade else ''}{quoted}"

    @property
    def _tool(self) -> str:
        return "uv pip install" if self.installer == "uv" else "pip install"


def installation() -> Installation:
    """Return how hexloop was installed, as far as its metadata says."""
    try:
        found = distribution("hexloop")
        installer = (found.read_text("INSTALLER") or "pip").strip().lower()
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        url, editable = origin.get("url"), bool(origin.get("dir_info", {}).get("editable"))
        if editable and url is not None:
            return Installation(installer, url2pathname(urlsplit(url).path), editable)
        if "vcs_info" in origin:
            url = f"{origin['vcs_info']['vcs']}+{url}"
    except (PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # the metadata are damaged
        return Installation()
    return Installation(installer, url)


def requirements() -> Iterator[Requirement]:
    """Yield what hexloop's metadata names, without hexloop itself; nothing if it is run without being installed."""
    try:
        lines = requires("hexloop") or ()
    except PackageNotFoundError:
        return
    for line in lines:
        found = REQUIREMENT.match(line)
        if found is not None and found["name"] != "hexloop":
            yield Requirement(found["name"], found["wanted"].strip(), found["extra"], found["options"] or "")


def install(extra: str, *packages: str) -> str:
    """Return the command that installs what is missing of an extra of hexloop, by the names of the packages.

    packages: those that the message is about, if the extra has others as well, and if the metadata has no such extra.
    """
    normal = extra.replace("_", "-").lower()
    named = {_normal(each.name): each for each in requirements() if each.extra and _normal(each.extra) == normal}
    wanted = [named.get(_normal(name), Requirement(name)) for name in packages] or [
        each for each in named.values() if not _is_installed(each.name)
    ]
    chosen = wanted or list(named.values()) or [Requirement(extra)]
    return installation().plain_command(*(f"{each.name}{each.options}{each.wanted}" for each in chosen))


def how_to_install(extra: str, *packages: str) -> str:
    """Return what a message says about a missing package; see `install`."""
    return f"run `{install(extra, *packages)}` ({troubleshooting('missing package')})"


class Installations:
    """What messages with fields in braces say about the missing package of an extra, as in {install[peft]}."""

    def __getitem__(self, extra: str) -> str:
        return how_to_install(extra)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
