"""What the doctor found, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, frozen


@frozen
class DeviceFound:
    """A device, or a kind of device of which there is none.

    precisions: each number format that it computes in, with "works" or what a small product in it raised.
    advice: what to do where there is none.
    """

    name: str
    description: str
    precisions: Mapping[str, str]
    advice: str | None = None


@frozen
class PluginFound:
    """An adapter that an installed package brings. problem: what loading it raised; None where it loads."""

    group: str
    name: str
    package: str
    problem: str | None


@frozen
class PackageFound:
    """A package that hexloop uses. version: None where it is missing. install: what to do where it is, or is too old.

    extras: what it is needed for; none where hexloop cannot do without it.
    """

    name: str
    wanted: str
    extras: Sequence[str]
    version: str | None
    install: str | None


@frozen
class Report:
    """Everything that the doctor found. adapters: hexloop's own, by port."""

    hexloop: str
    python: str
    platform: str
    devices: Sequence[DeviceFound]
    adapters: Mapping[str, Sequence[str]]
    plugins: Sequence[PluginFound]
    packages: Sequence[PackageFound]

    @property
    def missing(self) -> list[PackageFound]:
        """The packages that hexloop cannot do without, and that are missing or too old."""
        return [package for package in self.packages if package.install and not package.extras]

    def to_dict(self) -> dict[str, Any]:
        """The report in terms of what JSON has."""
        return {**asdict(self), "missing": [package.name for package in self.missing]}
