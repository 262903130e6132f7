"""Runs that publish on a server on loopback that fails, as processes of their own, some of them killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitInfo, ModelCard

from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import verify
from tests.end_to_end.small.trainers import small_trainer
from tests.engines.publishing_hub import HubFault, PublishingHub, publishing_hub

ROOT = Path(__file__).parents[3]
LAST = 12
"""The last step of a run."""


def start(folder: Path, address: str, **further: Any) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.end_to_end.publishing.publishing_run", str(folder), address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*program, json.dumps(further)], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output of a program that succeeds."""
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output, errors


def flush(folder: Path) -> None:
    program = [sys.executable, "-m", "hexloop", "outbox", "flush", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_TOKEN": "hf_0123456789abcdef"}
    subprocess.run(program, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=240)


def assert_complete(hub: PublishingHub, folder: Path, step: int = LAST) -> None:
    """The newest version has the last checkpoint, whole and verified, and its model; no version is a torn one."""
    for commit in hub.commits("someone/model"):
        step_of_commit = json.loads(commit.files["last-checkpoint/manifest.json"])["step"]
        with tempfile.TemporaryDirectory() as fetched:
            saved = Path(fetched, f"checkpoint-{step_of_commit}")
            saved.mkdir()
            for path, data in commit.files.items():
                if path.startswith("last-checkpoint/"):
                    Path(saved, path.rpartition("/")[2]).write_bytes(data)
            assert verify(LocalStorage(fetched), saved.name).manifest.step == step_of_commit
        assert commit.files["model.safetensors"] == commit.files["last-checkpoint/model.safetensors"]
    assert hub.commits("someone/model")[-1].message == f"Training in progress, step {step}"
    local = {path.name: path.read_bytes() for path in (folder / f"checkpoint-{step}").iterdir()}
    published = hub.files("someone/model")
    assert {name: published[f"last-checkpoint/{name}"] for name in local} == local
    assert len([path for path in published if path.startswith("last-checkpoint/")]) == len(local)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Return the log and the final weights of a run without a hub."""
    folder = tmp_path_factory.mktemp("plain")
    output, _ = finished(start(folder, "http://127.0.0.1:9", push_to_hub=False))
    return output, (folder / f"checkpoint-{LAST}" / "model.safetensors").read_bytes()


FAULTS = {
    "a refusal of the upload": HubFault("preupload", 403, times=10**9),
    "a missing repository": HubFault("preupload", 404, times=1, headers={"X-Error-Code": "RepoNotFound"}),
    "a conflict": HubFault("commit/main", 409, times=2),
    "a parent that has moved": HubFault("commit/main", 412, times=2),
    "too many requests": HubFault("revision/main", 429, times=1, headers={"Retry-After": "1"}),
    "an error": HubFault("preupload", 500, times=2),
    "a dropped upload": HubFault("PUT /storage", None, times=2),
    "a lost answer": HubFault("commit/main", None, times=1, after=True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_hub_that_fails_does_not_change_a_run(name: str, plain: tuple[str, bytes], tmp_path: Path) -> None:
    """Log, weights and exit code are those of a run without a hub; in the end the hub has everything, once."""
    with publishing_hub() as hub:
        fault = FAULTS[name]
        hub.faults.append(HubFault(fault.matches, fault.status, fault.times, dict(fault.headers), fault.after))
        output, errors = finished(start(tmp_path, hub.address))
        assert output == plain[0]
        assert (tmp_path / f"checkpoint-{LAST}" / "model.safetensors").read_bytes() == plain[1]
        assert "hf_0123456789abcdef" not in output + errors
        assert not any(b"hf_0123" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        if fault.status == 403:
            assert "hexloop outbox retry" in errors
            assert hub.commits("someone/model") == []
            return
        assert_complete(hub, tmp_path)


def test_the_final_model_is_a_commit_of_the_package(tmp_path: Path) -> None:
    """`push_to_hub` returns huggingface_hub's own class, and the card is one that the package accepts."""
    with publishing_hub() as hub:
        made = HuggingFaceHub(hub.address, "hf_0123456789abcdef")
        trainer = small_trainer(tmp_path, parts={"hub": made}, push_to_hub=True, hub_model_id="model")
        commit = trainer.push_to_hub()
        assert trainer.hub_model_id == "someone/model"
        assert isinstance(commit, CommitInfo)
        assert commit.oid == hub.commits("someone/model")[-1].oid
        assert commit.commit_url == f"{hub.address}/someone/model/commit/{commit.oid}"
        metadata: Any = ModelCard(hub.files("someone/model")["README.md"].decode()).data
        assert metadata.library_name == "hexloop"


def test_a_refusal_is_known_before_the_first_step(tmp_path: Path) -> None:
    """A token that is wrong ends the program with a message that names the repository and what to do."""
    with publishing_hub() as hub:
        hub.faults.append(HubFault("repos/create", 401, times=10**9))
        process = start(tmp_path, hub.address)
        _, errors = process.communicate(timeout=240)
        assert process.returncode != 0
        assert "ConfigurationError: The hub refuses hub_model_id='someone/model'" in errors
        assert "Check the token" in errors
        assert not list(tmp_path.glob("checkpoint-*"))


def test_a_hub_that_comes_back_after_the_run_gets_everything(plain: tuple[str, bytes], tmp_path: Path) -> None:
    """The run ends in bounded time, names what is left, and the command that it names finishes it."""
    with publishing_hub() as hub:
        hub.is_down = True
        output, errors = finished(start(tmp_path, hub.address, outbox_grace=0.5))
        assert output == plain[0]
        assert "The hub cannot be reached" in errors
        assert f"Training in progress, step {LAST}' to someone/model on {hub.address}" in errors
        assert f"hexloop outbox flush {tmp_path}" in errors
        hub.is_down = False
        flush(tmp_path)
        assert_complete(hub, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(100))
def test_a_run_that_is_killed_while_it_publishes_loses_nothing(seed: int, tmp_path: Path) -> None:
    """However often it is killed, the hub never shows a torn version, and ends with the whole last state."""
    chance = random.Random(seed)
    with publishing_hub() as hub:
        hub.delay = 0.02
        for _ in range(chance.randint(1, 3)):
            process = start(tmp_path, hub.address)
            until, commits = time.monotonic() + 60, len(hub.commits("someone/model"))
            while process.poll() is None and len(hub.commits("someone/model")) <= commits + chance.randint(0, 2):
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(chance.random() * 0.1)
            process.kill()
            process.communicate()
        finished(start(tmp_path, hub.address))
        flush(tmp_path)
        assert_complete(hub, tmp_path)
