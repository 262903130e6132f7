"""Stand-ins for CUDA's libraries, so that a torch that is built for CUDA can be imported without them.

The last torch that torch_xla works with is published for CUDA alone, and loads some gigabytes of libraries that a test
on the CPU never calls. Each stand-in has the name and the versions of a library, and of its functions those that torch
refers to: they return the error "no device". Needs gcc, and pyelftools, which reads the files of torch.

    python tests/xla/stand_ins.py SITE_PACKAGES
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field
from elftools.elf.elffile import ELFFile

OF_CUDA = ("libcu", "libnccl", "libnv")
NO_DEVICE = 100
"""The value of cudaErrorNoDevice."""

TEXTS = ("GetErrorString", "GetErrorName", "GetStatusString", "GetStatusName")
"""The ends of the names of functions that return a text."""


@define
class Found:
    """What the libraries of torch refer to and define.

    missing: the functions to define, by library and version; "" for functions without a version. defined: the functions
    that torch has itself.
    """

    missing: defaultdict[str, defaultdict[str, set[str]]] = field(factory=lambda: defaultdict(lambda: defaultdict(set)))
    unversioned: set[str] = field(factory=set)
    defined: set[str] = field(factory=set)


def read(libraries: list[Path]) -> Found:
    """Return what `libraries` refer to and define."""
    found, present = Found(), {each.name for each in libraries}
    for path in libraries:
        with path.open("rb") as file:
            elf = ELFFile(file)
            dynamic = elf.get_section_by_name(".dynamic")
            for tag in dynamic.iter_tags("DT_NEEDED"):
                if tag.needed.startswith(OF_CUDA) and tag.needed not in present:
                    found.missing[tag.needed]  # also one without a function
            for name, library, version, is_defined in _functions(elf):
                if is_defined:
                    found.defined.add(name)
                elif library is None:
                    found.unversioned.add(name)
                elif library.startswith(OF_CUDA) and library not in present:
                    found.missing[library][version].add(name)
    return found


def _functions(elf: Any) -> Iterator[tuple[str, str | None, str, bool]]:
    """Yield each dynamic symbol: its name, the library and the version that it refers to, whether it is defined."""
    needed: dict[int, tuple[str, str]] = {}
    if (requirements := elf.get_section_by_name(".gnu.version_r")) is not None:
        for library, versions in requirements.iter_versions():
            needed |= {each.entry["vna_other"]: (library.name, each.name) for each in versions}
    indices = elf.get_section_by_name(".gnu.version")
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if not symbol.name or symbol.entry["st_info"]["bind"] == "STB_WEAK":
            continue
        index = None if indices is None else indices.get_symbol(number).entry["ndx"]
        library, version = needed.get(index, (None, "")) if isinstance(index, int) else (None, "")
        yield symbol.name, library, version, symbol.entry["st_shndx"] != "SHN_UNDEF"


def write(library: Path, versions: dict[str, set[str]]) -> None:
    """Compile a stand-in that defines functions of these versions."""
    code, script = [], []
    for version, names in sorted(versions.items()):
        code += [_definition(name) for name in sorted(names)]
        if version:
            script.append(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};")
    with tempfile.TemporaryDirectory() as folder:
        source, map_file = Path(folder, "stand_in.c"), Path(folder, "versions")
        source.write_text("\n".join(code) or "int hexloop_stand_in;")
        map_file.write_text("\n".join(script))
        options = [f"-Wl,--version-script={map_file}"] if script else []
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library.name}", *options]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)


def _definition(name: str) -> str:
    if name.endswith(TEXTS):
        return f'const char *{name}(void) {{ return "a stand-in for CUDA"; }}'
    return f"int {name}(void) {{ return {NO_DEVICE}; }}"


def main(site_packages: str) -> None:
    """Write the stand-ins next to the libraries of torch, which look for them there."""
    folder = Path(site_packages, "torch", "lib")
    found = read(sorted(folder.glob("*.so*")))
    prefixes = ("cu", "nccl", "nv")
    others = {name for name in found.unversioned - found.defined if name.startswith(prefixes)}
    for number, library in enumerate(sorted(found.missing)):
        versions = dict(found.missing[library])
        if number == 0 and others:
            versions[""] = others
        write(folder / library, versions)
    print(f"wrote {len(found.missing)} stand-ins for CUDA's libraries to {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
