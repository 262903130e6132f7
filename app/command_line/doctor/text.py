"""The doctor's report for the eye."""

from __future__ import annotations

from collections.abc import Iterator

from hexloop.app.command_line.doctor.report import DeviceFound, PackageFound, Report


def as_text(report: Report) -> str:
    """The report, a section for each subject."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"hexloop {report.hexloop}, Python {report.python}, {report.platform}"
    yield "\nDevices"
    for device in report.devices:
        yield from _device(device)
    yield "\nAdapters of each port"
    for port, names in report.adapters.items():
        yield f"  {port:<16}{', '.join(names)}"
    yield "\nAdapters that installed packages bring"
    for plugin in report.plugins:
        state = f"does not load: {plugin.problem}" if plugin.problem else "loads"
        yield f"  {plugin.group:<16}{plugin.name}, from {plugin.package}: {state}"
    if not report.plugins:
        yield "  none; packages bring them as entry points in groups such as hexloop.loggers"
    yield "\nPackages"
    for package in report.packages:
        yield _package(package)
    yield ""
    if report.missing:
        yield f"hexloop cannot work without {', '.join(package.name for package in report.missing)}."
    else:
        yield "Everything that hexloop cannot do without is here."


def _device(device: DeviceFound) -> Iterator[str]:
    if not device.precisions:
        yield f"  {device.name:<16}none: {device.description}{f'; {device.advice}' if device.advice else ''}"
        return
    works = [name for name, outcome in device.precisions.items() if outcome == "works"]
    yield f"  {device.name:<16}{', '.join(works)} ({device.description})"
    for name, outcome in device.precisions.items():
        if outcome != "works":
            yield f"  {'':<16}{name} fails: {outcome}"


def _package(package: PackageFound) -> str:
    line = f"  {package.name:<16}{package.version or 'missing':<16}"
    if package.extras:
        line += f"for {', '.join(package.extras)}"
    if package.install:
        old = f"older than {package.wanted.removeprefix('>=')}; " if package.version else ""
        line = f"{line:<50}{old}{package.install}"
    return line.rstrip()
