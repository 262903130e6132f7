"""Fuzz what hexloop reads: `python -m tests.fuzz --seconds 60`; exit code 1 if there are findings.

`python -m tests.fuzz --target NAME FILE` runs one case, and prints what is wrong with it.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from contextlib import redirect_stderr
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> int:
    """Read the options and run the targets; return the exit code."""
    options = _options()
    if find_spec("atheris") is not None and not (options.target or options.replay or options.random):
        import atheris

        with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["hexloop"]):  # which lists them
            import tests.fuzz.everything  # noqa: F401 - its imports are instrumented
    from tests.fuzz.driving import replay, save
    from tests.fuzz.everything import TARGETS
    from tests.fuzz.processes import run_all

    if options.target:
        target = TARGETS[options.target]
        target.seeds()  # which makes what it needs, before processes are forked
        named = run_all(target.name, target.run, [path.read_bytes() for path in options.files]).findings.values()
        print(*(f"{each.kind}: {each.detail}" for each in named) if named else ["No finding."], sep="\n")
        return int(bool(named))
    if unknown := set(options.targets) - TARGETS.keys():
        print(f"There are no targets {', '.join(sorted(unknown))}; they are {', '.join(TARGETS)}.", file=sys.stderr)
        return 2
    chosen = options.targets or list(TARGETS)
    if options.replay:
        counts = [replay(TARGETS[name]) for name in chosen]
        print(*(line for each in counts for line in save(each, options.findings)), sep="\n")
        print(f"{sum(each.cases for each in counts)} cases, {sum(len(each.findings) for each in counts)} findings")
        return int(any(each.findings for each in counts))
    started, total = time.monotonic(), sum(TARGETS[name].weight for name in chosen)
    share = options.seconds * options.jobs / total
    kind = "random" if options.random or find_spec("atheris") is None else "chosen by coverage and random"
    print(f"{len(chosen)} targets, from {share:.0f} s each, cases {kind}, seed {options.seed}", flush=True)
    work = [
        (name, share * TARGETS[name].weight, options.seed, not options.random, options.findings)
        for name in sorted(chosen, key=lambda name: -TARGETS[name].weight)
    ]
    findings = 0
    for name in chosen:
        TARGETS[name].seeds()  # which makes what they need, once
    with get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for lines, found in pool.imap_unordered(_fuzz, work, chunksize=1):
            findings += found
            print(*lines, sep="\n", flush=True)
    print(f"{findings} findings in {time.monotonic() - started:.0f} s")
    return int(findings > 0)


def _fuzz(work: tuple[str, float, int, bool, Path]) -> tuple[list[str], int]:
    from tests.fuzz.driving import fuzz, report, save
    from tests.fuzz.everything import TARGETS

    name, seconds, seed, guided, folder = work
    started = time.monotonic()
    counts = fuzz(TARGETS[name], seconds, seed, guided)
    return [report(TARGETS[name], counts, time.monotonic() - started), *save(counts, folder)], len(counts.findings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long all targets take together")
    parser.add_argument("--jobs", type=int, default=1, help="how many targets run at a time")
    parser.add_argument("--targets", nargs="+", default=[], metavar="NAME", help="only these targets")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases")
    parser.add_argument("--replay", action="store_true", help="run only the cases of the corpus")
    parser.add_argument("--random", action="store_true", help="do without atheris")
    parser.add_argument("--findings", type=Path, default=Path("runs/fuzz"), help="where findings are written")
    parser.add_argument("--target", metavar="NAME", help="run the cases in files")
    parser.add_argument("files", nargs="*", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
