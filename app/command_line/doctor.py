"""`hexloop doctor`: the devices, adapters and packages of this machine, and what to install for what is missing."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, distributions, version
from importlib.util import find_spec

from attrs import asdict, frozen

import hexloop
from hexloop.app.assembly.searches import BACKENDS
from hexloop.app.callbacks.trackers import TRACKERS, is_installed
from hexloop.app.command_line import ExitCode
from hexloop.app.devices import device_kinds
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.installation import Installation, installation, requirements
from hexloop.ports.device import Device

OWN_LOGGERS = ("console", "json_lines")
"""The loggers of `report_to` that need no package."""

OBJECT_STORES = ("s3", "gs", "az", "abfs", "hf")
"""Schemes of URLs that are looked for; fsspec has more."""

FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")
GET_TORCH = "https://pytorch.org/get-started/locally"

DEVELOPMENT = frozenset({"test", "docs", "bench", "fuzz"})
"""The extras for developing hexloop itself, which are not reported."""


@frozen
class DeviceFound:
    """A device, or a kind of device that is missing.

    precisions: for each precision that it supports, "works" or the error of a small matrix product in it.
    advice: what to do if the device is missing.
    """

    name: str
    description: str
    precisions: Mapping[str, str]
    advice: str | None = None


@frozen
class PluginFound:
    """An adapter from an installed package. problem: the error when loading it; None if it loads."""

    group: str
    name: str
    package: str
    problem: str | None


@frozen
class PackageFound:
    """A package that hexloop uses. version: None if missing. install: the command if it is missing or too old.

    extras: the extras that need it; empty if hexloop itself does.
    """

    name: str
    wanted: str
    extras: Sequence[str]
    version: str | None
    install: str | None


@frozen
class Choice:
    """The names that an argument can have: those that work here, and the others by the package that each needs."""

    usable: Sequence[str]
    missing: Mapping[str, str]


@frozen
class Report:
    """Everything that was found. choices: by the argument that has them."""

    hexloop: str
    python: str
    platform: str
    devices: Sequence[DeviceFound]
    choices: Mapping[str, Choice]
    plugins: Sequence[PluginFound]
    packages: Sequence[PackageFound]

    @property
    def missing(self) -> list[PackageFound]:
        """The packages that hexloop itself needs and that are missing or too old."""
        return [package for package in self.packages if package.install and not package.extras]


def run(options: Namespace) -> ExitCode:
    """Print the report. Return FAILED if something that hexloop needs is missing."""
    report = Report(
        hexloop=hexloop.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        devices=list(_devices()),
        choices=_choices(),
        plugins=_plugins(),
        packages=_packages(),
    )
    if options.json:
        print_document({**asdict(report), "missing": [package.name for package in report.missing]})
    else:
        print_lines(*_lines(report))
    return ExitCode.FAILED if report.missing else ExitCode.DONE


def _devices() -> Iterator[DeviceFound]:
    """Yield the CPU, every GPU, and what is missing for the other kinds of devices."""
    if find_spec("torch") is None:
        yield DeviceFound("cpu", "unknown without torch", {}, f"install torch: {GET_TORCH}")
        return
    import torch

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    processor = f"{cores} core{'s' * (cores > 1)}, {threads} torch thread{'s' * (threads > 1)}"
    kinds = dict(device_kinds())
    yield _tested(kinds.pop("cpu").device(0), processor)
    for kind in kinds.values():
        if kind.is_available():
            for number in range(kind.count()):
                yield _tested(kind.device(number), kind.describe(number))
        elif (missing := kind.missing()) is not None:
            yield DeviceFound(kind.name, missing.reason, {}, missing.advice)


def _tested(device: Device | None, description: str) -> DeviceFound:
    assert device is not None
    present = device.capabilities.precisions
    formats = [*(name for name in FORMATS if name in present), *sorted(present.difference(FORMATS))]
    return DeviceFound(device.name, description, {name: _product(device.name, name) for name in formats})


def _product(device: str, precision: str) -> str:
    """Multiply two small matrices of ones in the precision; return "works" or what went wrong."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    try:
        ones = torch.ones(16, 16, dtype=dtype, device=device)
        if precision == "fp8":
            narrow, scale = ones.to(torch.float8_e4m3fn), ones.new_ones(())
            product = torch._scaled_mm(narrow, narrow.t(), scale, scale, out_dtype=torch.bfloat16).float().sum().item()
        else:
            product = (ones @ ones).float().sum().item()
    except Exception as error:  # drivers raise anything
        return f"{type(error).__name__}: {error}"
    return "works" if product == 4096 else f"a matrix product returned {product} instead of 4096"


def _choices() -> dict[str, Choice]:
    """Return what can be chosen by name in the arguments, in a search and in URLs."""
    trackers = {name: "" if is_installed(name) else row.packages[0] for name, row in TRACKERS.items()}
    backends = {
        name: "" if row.module is None or find_spec(row.module) is not None else row.package
        for name, row in BACKENDS.items()
        if not row.ended
    }
    found = {"report_to": _choice({**dict.fromkeys(OWN_LOGGERS, ""), **trackers}), "optim": _choice(_optimizers())}
    return {**found, "backend of a search": _choice(backends), "URLs of output_dir": _choice(_object_stores())}


def _choice(needs: Mapping[str, str]) -> Choice:
    """Return the choice among names, given the missing package of each, "" if there is none."""
    missing = {name: package for name, package in needs.items() if package}
    return Choice([name for name in needs if name not in missing], missing)


def _optimizers() -> dict[str, str]:
    if find_spec("torch") is None:
        return {}
    from hexloop.adapters.trainable.torch.optimizers import OPTIMIZERS

    return {name: "" if _is_installed(row.package) else row.package for name, row in OPTIMIZERS.items()}


def _is_installed(package: str) -> bool:
    """Return whether a distribution is installed, or a module of its name is found, as one from a folder is."""
    try:
        version(package)
    except PackageNotFoundError:
        return find_spec(package.replace("-", "_")) is not None
    return True


def _object_stores() -> dict[str, str]:
    if find_spec("fsspec") is None:
        return {"file": "", **dict.fromkeys(OBJECT_STORES, "fsspec")}
    from fsspec.registry import known_implementations

    needs = {"file": ""}
    for scheme in OBJECT_STORES:
        if scheme in known_implementations:
            module = known_implementations[scheme]["class"].partition(".")[0]
            needs[scheme] = "" if find_spec(module) is not None else module
    return needs


def _plugins() -> list[PluginFound]:
    """Load every entry point in hexloop's groups."""
    found = {
        (each.group, each.name): each
        for distribution in distributions()
        for each in distribution.entry_points
        if each.group.startswith("hexloop.")
    }
    return [_plugin(found[key]) for key in sorted(found)]


def _plugin(entry_point: EntryPoint) -> PluginFound:
    try:
        entry_point.load()
        problem = None
    except Exception as error:  # a package may raise anything when it is imported
        problem = f"{type(error).__name__}: {error}"
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.value
    return PluginFound(entry_point.group, entry_point.name, package, problem)


def _packages() -> list[PackageFound]:
    """Return the packages in hexloop's metadata, each once: what hexloop needs, then what its extras need."""
    wanted: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    for each in requirements():
        if each.extra not in DEVELOPMENT:
            wanted.setdefault(each.name, each.wanted)
            extras.setdefault(each.name, []).extend(filter(None, [each.extra]))
    names, how = sorted(wanted, key=lambda each: bool(extras[each])), installation()
    return [_package(name, wanted[name], extras[name], how) for name in names]


def _package(name: str, wanted: str, extras: Iterable[str], how: Installation) -> PackageFound:
    extras = sorted(extras)
    try:
        present: str | None = version(name)
    except PackageNotFoundError:
        present = None
    lacking = present is None or not _satisfies(present, wanted)
    return PackageFound(name, wanted, extras, present, how.command(name, wanted, extras) if lacking else None)


def _satisfies(present: str, wanted: str) -> bool:
    """Return whether the version `present` satisfies a requirement such as ">=1.2"; True for other requirements."""
    lowest = re.fullmatch(r">=([\d.]+)", wanted)
    return lowest is None or _release(present) >= _release(lowest[1])


def _release(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version without trailing zeros: 2.13.0+cpu is (2, 13)."""
    leading = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _lines(report: Report) -> Iterator[str]:
    yield f"hexloop {report.hexloop}, Python {report.python}, {report.platform}"
    yield ""
    yield "Devices, and the precisions in which each computes"
    yield from _aligned(cells for device in report.devices for cells in _device_cells(device))
    yield ""
    yield "Names that can be chosen here"
    yield from _aligned(cells for name, choice in report.choices.items() for cells in _cells(name, choice.usable))
    yield ""
    yield "Names that need a package"
    lacking = {
        name: [f"{each} ({package})" for each, package in choice.missing.items()]
        for name, choice in report.choices.items()
    }
    yield from _aligned(cells for name, each in lacking.items() for cells in _cells(name, each or ["none"]))
    yield ""
    yield "Adapters from installed packages"
    yield from _aligned(
        (
            plugin.group,
            f"{plugin.name}, from {plugin.package}: "
            + (f"does not load: {plugin.problem}" if plugin.problem else "loads"),
        )
        for plugin in report.plugins
    )
    if not report.plugins:
        yield "  none; packages provide them as entry points in groups such as hexloop.loggers"
    yield ""
    yield "Packages"
    yield from _aligned(map(_package_cells, report.packages))
    yield ""
    if report.missing:
        yield f"hexloop cannot work without {', '.join(package.name for package in report.missing)}."
    else:
        yield "Everything that hexloop needs is installed."


def _cells(title: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield rows that list names, with the title before the first."""
    lines = textwrap.wrap(", ".join(names), 90, break_long_words=False, break_on_hyphens=False)
    yield from zip([title, *[""] * (len(lines) - 1)], lines, strict=True)


def _device_cells(device: DeviceFound) -> Iterator[tuple[str, str]]:
    if not device.precisions:
        yield device.name, f"none: {device.description}{f'; {device.advice}' if device.advice else ''}"
        return
    works = [name for name, outcome in device.precisions.items() if outcome == "works"]
    yield device.name, f"{', '.join(works) or 'none'} ({device.description})"
    for name, outcome in device.precisions.items():
        if outcome != "works":
            yield "", f"{name} fails: {outcome}"


def _package_cells(package: PackageFound) -> tuple[str, str, str, str]:
    """Return name, version, what needs the package, and what to do."""
    needs = f"for {', '.join(package.extras)}" if package.extras else ""
    advice = package.install or ""
    if package.install and package.version:
        advice = f"older than {package.wanted.removeprefix('>=')}; {advice}"
    return package.name, package.version or "missing", needs, advice


def _aligned(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield each row as an indented line, in columns with two spaces between them. A long last cell stays as it is."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
