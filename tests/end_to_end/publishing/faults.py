"""Runs that publish on a server on loopback that fails, as processes of their own: what the user sees, what is left.

`python -m tests.end_to_end.publishing.faults` prints a table of all faults.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import verify
from tests.end_to_end.publishing.publishing_run import TOKEN
from tests.engines.publishing_hub import HubFault, PublishingHub, publishing_hub
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[3]
LAST = 12
"""The last step of a run."""

REPOSITORY = "someone/model"
FOR_EVER = 10**9


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}


def start(folder: Path, address: str, **further: Any) -> subprocess.Popen[str]:
    """Start a program that trains and publishes."""
    program = [warm_python(), "-m", "tests.end_to_end.publishing.publishing_run", str(folder), address]
    return subprocess.Popen(
        [*program, json.dumps(further)], cwd=ROOT, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output of a program that succeeds."""
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    return output, errors


def hexloop(*words: str) -> subprocess.CompletedProcess[str]:
    """Call the command."""
    program = [warm_python(), "-m", "hexloop", *words]
    return subprocess.run(
        program, cwd=ROOT, env=environment(), check=False, capture_output=True, text=True, timeout=280
    )


def flush(folder: Path, address: str) -> None:
    done = hexloop("outbox", "flush", str(folder), "--hub", address)
    assert done.returncode == 0, done.stdout + done.stderr


@frozen
class Fault:
    """What the hub does during a run, after the repository was created, and arguments of the run."""

    breaks: Callable[[PublishingHub], None]
    arguments: dict[str, Any] = field(factory=dict)
    left: bool = False


def answers(request: str, status: int | None, times: int = 2, after: bool = False, **headers: str) -> Fault:
    """Return the fault of a hub that answers some requests with an error; with a refusal something is left."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Fault(
        lambda hub: hub.faults.append(HubFault(request, status, times, dict(named), after)), left=times == FOR_EVER
    )


def _goes_down(hub: PublishingHub) -> None:
    hub.is_down = True


def _slows_down(hub: PublishingHub) -> None:
    hub.rate = 1_000


FAULTS = {
    "down, back after the run": Fault(_goes_down, {"outbox_grace": 1}, left=True),
    "401 from the first push on": answers("preupload", 401, FOR_EVER),
    "403 from the first push on": answers("preupload", 403, FOR_EVER),
    "404, the repository was removed": answers("preupload", 404, 1, X_Error_Code="RepoNotFound"),
    "404 from the first push on": answers("preupload", 404, FOR_EVER),
    "409, a conflict": answers("commit/main", 409),
    "412, the parent has moved": answers("commit/main", 412),
    "429 with Retry-After: 1": answers("revision/main", 429, 1, Retry_After="1"),
    "500": answers("preupload", 500),
    "500 for ever": Fault(answers("preupload", 500, FOR_EVER).breaks, {"outbox_grace": 1}, left=True),
    "dropped in the middle of an upload": answers("PUT /storage", None),
    "a lost answer to a commit": answers("commit/main", None, 1, after=True),
    "slow, 1 KB/s": Fault(_slows_down, {"outbox_grace": 1}, left=True),
}


@define
class Outcome:
    """What a run under a fault printed, and what was left and done afterwards."""

    output: str
    errors: str
    left: list[dict[str, Any]]
    command: str = ""
    after: str = ""

    @property
    def seen(self) -> str:
        """The warning at the end of the run, in one line; "" if there was none."""
        found = re.search(r"Not published yet.*?\n(.*?)\nOnce the cause", self.errors, re.DOTALL)
        return " ".join(found[1].split()) if found else ""


def outcome(name: str, hub: PublishingHub, folder: Path) -> Outcome:
    """Train with a fault; if something is left, repair the hub and call the command that the run named."""
    fault = FAULTS[name]
    fault.breaks(hub)
    output, errors = finished(start(folder, hub.address, **fault.arguments))
    left = json.loads(hexloop("outbox", "list", str(folder), "--json").stdout)["entries"]
    result = Outcome(output, errors, left)
    if left:
        hub.faults.clear()
        hub.rate, hub.is_down = None, False
        found = re.search(r"finish with: hexloop (.*)", errors)
        assert found is not None, errors
        result.command = found[1]
        done = hexloop(*shlex.split(found[1]))
        assert done.returncode == 0, done.stdout + done.stderr
        result.after = done.stdout.strip()
    return result


def assert_complete(hub: PublishingHub, folder: Path, step: int = LAST) -> None:
    """The newest version has the last checkpoint, whole and verified, and its model, once; no version is a torn one."""
    commits = hub.commits(REPOSITORY)
    for commit in commits:
        step_of_commit = json.loads(commit.files["last-checkpoint/manifest.json"])["step"]
        with tempfile.TemporaryDirectory() as fetched:
            saved = Path(fetched, f"checkpoint-{step_of_commit}")
            saved.mkdir()
            for path, data in commit.files.items():
                if path.startswith("last-checkpoint/"):
                    Path(saved, path.rpartition("/")[2]).write_bytes(data)
            assert verify(LocalStorage(fetched), saved.name).manifest.step == step_of_commit
        assert commit.files["model.safetensors"] == commit.files["last-checkpoint/model.safetensors"]
    last = f"Training in progress, step {step}"
    assert commits[-1].message == last
    assert [commit.message for commit in commits].count(last) == 1
    local = {path.name: path.read_bytes() for path in (folder / f"checkpoint-{step}").iterdir()}
    published = hub.files(REPOSITORY)
    assert {name: published[f"last-checkpoint/{name}"] for name in local} == local
    assert len([path for path in published if path.startswith("last-checkpoint/")]) == len(local)


def main() -> None:
    """Print a table of all faults."""
    print("| fault | what the user saw at the end | left in the outbox | after the command |\n|---|---|---|---|")
    for name in FAULTS:
        with publishing_hub() as hub, tempfile.TemporaryDirectory() as folder:
            found = outcome(name, hub, Path(folder))
            assert_complete(hub, Path(folder))
            commits = len(hub.commits(REPOSITORY))
            seen = found.seen.replace(hub.address, "HUB") or "nothing"
            left = f"{len(found.left)}, {'refused' if found.left[0]['refused'] else 'waiting'}" if found.left else "0"
            done = f"`{found.command.split()[1]}`: everything" if found.left else "everything at the end of the run"
            print(f"| {name} | {seen} | {left} | {done}, {commits} commits |", flush=True)


if __name__ == "__main__":
    main()
