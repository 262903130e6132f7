"""Runs adapters of trackers with the Python of an environment that `make test-trackers` creates."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import field, frozen

from hexloop.ports.logger import FINISHED, Media, Outcome, Record, SavedModel

ROOT = Path(__file__).resolve().parents[2]
CREATED = ROOT / ".trackers"
ENVIRONMENTS = Path(__file__).parent / "environments"
PROGRAMS = Path(__file__).parent / "programs"
LONGEST = 240
"""Seconds after which a program is stopped; importing a tracker may take many on a busy machine."""


@frozen
class SentRun:
    """What a program sends to a tracker. outcome: None if the program neither finishes nor fails, as if it was killed.

    with_model: whether RunInformation has a live model.
    """

    information: Mapping[str, object]
    records: Sequence[Record] = ()
    models: Sequence[SavedModel] = ()
    media: Sequence[Media] = ()
    outcome: Outcome | None = FINISHED
    with_model: bool = False


@frozen
class Answer:
    """What a program reports. identities: what `start` returned for each run. error: types and text of its error."""

    identities: list[str | None]
    warnings: list[str]
    version: str
    error: Mapping[str, Any] | None
    output: str = ""

    @property
    def identity(self) -> str:
        """What `start` returned for the only run."""
        [identity] = self.identities
        assert identity is not None
        return identity


def _curves(found: Mapping[str, Iterable[Iterable[Any]]]) -> dict[str, list[tuple[float | None, Any]]]:
    return {name: [(step, value) for step, value in points] for name, points in found.items()}


@frozen
class StoredRun:
    """What the store of a tracker has of one run.

    status: in the tracker's own words. parameters: under the tracker's names. history: for each name the steps and
    values of its curve, in order; None for a step that the store does not have. summary: values that are no curve.
    more: anything else that tests of this tracker look at.
    """

    identity: str | None
    name: str | None = None
    status: str | None = None
    parameters: Mapping[str, Any] = field(factory=dict)
    history: Mapping[str, list[tuple[float | None, Any]]] = field(factory=dict, converter=_curves)
    summary: Mapping[str, Any] = field(factory=dict)
    more: Mapping[str, Any] = field(factory=dict)


def python_of(environment: str) -> Path:
    """Return the Python of an environment. Skips the test if the environment has not been created."""
    python = CREATED / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`make test-trackers` creates the environment {environment!r} and runs this")
    return python


def pinned(environment: str, package: str) -> str:
    """Return the version of a package in the list of an environment."""
    lines = (ENVIRONMENTS / f"{environment}.txt").read_text(encoding="utf-8").splitlines()
    [version] = [line.partition("==")[2] for line in lines if line.lower().startswith(f"{package.lower()}==")]
    return version


def variables_for(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: nothing of the user's, and a home of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR") if name in os.environ}
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        **kept,
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
        "GIT_PYTHON_REFRESH": "quiet",
        **variables,
    }


def run(environment: str, *words: str | Path, folder: Path, variables: Mapping[str, str]) -> str:
    """Run Python with `words` in `folder`, without a terminal, and return its standard output; it must succeed."""
    code, output, errors = _apart([str(python_of(environment)), *map(str, words)], folder, variables)
    assert code == 0, output[-2000:] + errors[-6000:]
    return output


def track(
    environment: str,
    adapter: str,
    package: str,
    runs: Sequence[SentRun],
    *,
    folder: Path,
    variables: Mapping[str, str],
    options: Mapping[str, object] | None = None,
    hidden: Sequence[str] = (),
    one_logger: bool = True,
    dies_after: float | None = None,
    on_terminal: bool = False,
) -> Answer:
    """Send `runs` to an adapter, "module:class", in a process of its own, and return what it reports.

    hidden: modules that the process cannot import. one_logger: whether all runs use the same object. dies_after:
    seconds after its last call at which the process ends without what libraries do at exit; None if it ends as usual.
    on_terminal: whether standard input, output and the controlling terminal are a terminal where nothing is typed.
    """
    request, answer = folder / "request.json", folder / "answer.json"
    answer.unlink(missing_ok=True)
    request.write_text(
        json.dumps(
            {
                "adapter": adapter,
                "package": package,
                "options": dict(options or {}),
                "runs": [attrs.asdict(each) for each in runs],
                "hidden": list(hidden),
                "one_logger": one_logger,
                "dies_after": dies_after,
            }
        ),
        encoding="utf-8",
    )
    words = [str(python_of(environment)), str(PROGRAMS / "scenario.py"), str(request), str(answer)]
    if on_terminal:
        code, output = _on_terminal(words, folder, variables)
    else:
        code, *streams = _apart(words, folder, variables)
        output = "".join(streams)
    assert code == (0 if dies_after is None else 9), output[-8000:]
    return Answer(**json.loads(answer.read_text(encoding="utf-8")), output=output)


def _apart(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        words,
        cwd=folder,
        env=variables_for(folder, variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _on_terminal(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a program with a new controlling terminal; a program that asks for anything waits until it is killed."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words],
        cwd=folder,
        env=variables_for(folder, variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    output = bytearray()
    deadline = time.monotonic() + LONGEST
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    output += os.read(ours, 65536)
                except OSError:  # how Linux reports that the last process of a terminal has closed it
                    break
            elif process.poll() is not None:
                break
        return process.wait(max(0.0, deadline - time.monotonic()) + 10), output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        pytest.fail(f"the program waits on its terminal: {output.decode(errors='replace')[-2000:]}")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def stored(
    environment: str, program: str, *words: str | Path, folder: Path, variables: Mapping[str, str]
) -> list[StoredRun]:
    """Return what `programs/<program>` reads from a tracker's store: it prints a list of objects as its last line."""
    output = run(environment, PROGRAMS / program, *words, folder=folder, variables=variables)
    return [StoredRun(**each) for each in json.loads(output.splitlines()[-1])]
