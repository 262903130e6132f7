"""Checkpoints in a model repository of a hub are verified before anything is loaded, like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.config import conf

from hexloop.app.assembly.storage import storage_for
from hexloop.app.command_line import main
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError, ConfigurationError, DamagedCheckpointError
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.engines.hub_server import HubServer, hub_of
from tests.engines.object_store import drop, fail, flaky

URL = "hf://someone/model"
SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return an uninterrupted run of six steps."""
    trainer = small_trainer(tmp_path_factory.mktemp("whole"), **SAVING, max_steps=6)
    trainer.train()
    return trainer


@pytest.fixture
def hub(whole: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Return a hub that contains that run's folder, without its last checkpoint."""
    folder = Path(whole.args.output_dir)
    with hub_of("someone/model") as server:
        server.files = {
            name: path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith("checkpoint-6")
        }
        monkeypatch.setitem(conf, "hf", {"endpoint": server.address})
        yield server


def flip_a_bit(hub: HubServer, path: str) -> None:
    data = bytearray(hub.files[path])
    data[len(data) // 2] ^= 4
    hub.files[path] = bytes(data)


def test_a_run_resumes_from_a_hub_checkpoint(hub: HubServer, whole: Any, tmp_path: Path) -> None:
    """The resumed run is bitwise equal to an uninterrupted one, and nothing is written to the hub."""
    assert verify(storage_for(URL), "checkpoint-4").manifest.step == 4
    resumed = small_trainer(tmp_path, **SAVING, max_steps=6)
    resumed.train(resume_from_checkpoint=f"{URL}/checkpoint-4")
    assert same_weights(weights(resumed), weights(whole))
    assert history(resumed) == history(whole)
    assert all(request.startswith("GET ") for request in hub.requests)


def test_a_version_can_be_named(hub: HubServer) -> None:
    """A URL with a branch reads that version."""
    storage = storage_for(f"{URL}@main")
    names = [entry.name for entry in storage.list("") if entry.is_folder]
    assert names == [".hexloop", "checkpoint-2", "checkpoint-4"]
    assert verify(storage, "checkpoint-2").manifest.step == 2
    with pytest.raises(CheckpointError, match="the folder does not exist"):
        verify(storage_for(f"{URL}@elsewhere"), "checkpoint-2")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "run_state.json", "manifest.json"])
def test_a_damaged_hub_checkpoint_is_refused(hub: HubServer, tmp_path: Path, name: str) -> None:
    """One flipped bit in any file: the error names the valid checkpoint, and nothing is renamed on the hub."""
    flip_a_bit(hub, f"checkpoint-4/{name}")
    before = dict(hub.files)
    trainer = small_trainer(tmp_path, **SAVING, max_steps=6)
    start = weights(trainer)
    with pytest.raises(CheckpointError, match="Choose one of the good checkpoints: checkpoint-2"):
        trainer.train(resume_from_checkpoint=f"{URL}/checkpoint-4")
    assert same_weights(weights(trainer), start)
    assert hub.files == before


def test_the_command_line_reports_good_and_bad(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """`checkpoints verify` reads all files from the hub and reports which checkpoint is damaged, and how."""
    flip_a_bit(hub, "checkpoint-2/model.safetensors")
    assert main(["checkpoints", "verify", URL]) == 1
    said = capsys.readouterr().out
    assert f"{URL}/checkpoint-4: good" in said
    assert f"{URL}/checkpoint-2: bad" in said
    assert "model.safetensors does not hold the bytes that were stored" in said
    with pytest.raises(DamagedCheckpointError):
        verify(storage_for(URL), "checkpoint-2")


@pytest.mark.matrix
def test_failed_hub_requests_are_retried(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken connections and 5xx errors are retried, and every byte is still verified."""
    asked: list[str] = []

    def plan(_: str, path: str) -> Any:
        asked.append(path)
        return {3: drop, 7: fail(503), 12: drop, 20: fail(500)}.get(len(asked))

    with flaky(hub.address, plan) as server:
        monkeypatch.setitem(conf, "hf", {"endpoint": server.address})
        assert verify(storage_for(URL), "checkpoint-4").manifest.step == 4
    assert len(asked) > 20


def test_missing_or_forbidden_repositories_are_reported(hub: HubServer, tmp_path: Path) -> None:
    """A missing model, checkpoint or permission; forbidden requests are not repeated."""
    for url in ("hf://someone/other/checkpoint-4", f"{URL}/checkpoint-5"):
        with pytest.raises(CheckpointError, match="cannot be used"):
            small_trainer(tmp_path, **SAVING, max_steps=6).train(resume_from_checkpoint=url)
    with pytest.raises(ConfigurationError, match=r"(?s)403 Forbidden.*. Check the credentials"):
        small_trainer(URL, **SAVING, max_steps=6).train()  # type: ignore[arg-type] # a URL is no Path
    assert sum("preupload" in request for request in hub.requests) == 1
