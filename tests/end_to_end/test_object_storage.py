"""A Trainer whose output folder is a URL: a bucket of a real S3 server on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem
from safetensors.torch import load

from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.tiered import TieredStorage
from hexloop.app.assembly.storage import storage_for
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.run_folder import OWN
from hexloop.ports.storage import Storage
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.engines.object_store import KEY, SECRET, fail, flaky, new_bucket, object_store

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2, "max_steps": 6}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with object_store() as address:
        yield address


@pytest.fixture
def url(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return a new bucket, which s3fs accesses through environment variables."""
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    S3FileSystem.clear_instance_cache()
    return f"s3://{new_bucket(address)}/runs/first"


def trainer_at(url: str, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    return small_trainer(url, parts=parts, **{**SAVING, **given})  # type: ignore[arg-type] # a URL is no Path


def cut_after(trainer: Any, step: int) -> None:
    """Train, and drop the run once the checkpoint of that step is published."""
    with closing(trainer.stream()) as events:
        for event in events:
            if type(event) is CheckpointPublished and event.step == step:
                break


def names(storage: Storage, without: str = OWN) -> list[str]:
    return [entry.name for entry in storage.list("") if entry.name != without]


def test_a_run_is_saved_to_and_resumed_from_a_url(url: str, tmp_path: Path) -> None:
    """Interrupted after four steps and resumed by URL or by True, it matches an uninterrupted run; rotation works."""
    whole = small_trainer(tmp_path / "whole", **{**SAVING, "save_strategy": "no"})
    whole.train()
    cut_after(trainer_at(url), 4)
    assert names(storage_for(url)) == ["checkpoint-2", "checkpoint-4"]
    for source in (f"{url}/checkpoint-4/", True):
        resumed = trainer_at(url)
        resumed.train(resume_from_checkpoint=source)
        assert same_weights(weights(resumed), weights(whole))
        assert history(resumed)[:6] == history(whole)[:6]
    assert names(storage_for(url)) == ["checkpoint-4", "checkpoint-6"]
    assert verify(storage_for(url), "checkpoint-6").manifest.step == 6
    assert list(tmp_path.rglob("*")) == [tmp_path / "whole"], "nothing of a run with a URL is written here"


def test_another_run_resumes_from_a_url(url: str, tmp_path: Path) -> None:
    """A run that writes to a folder may start from a checkpoint in a bucket."""
    cut_after(trainer_at(url), 2)
    resumed = small_trainer(tmp_path / "here", **SAVING)
    resumed.train(resume_from_checkpoint=f"{url}/checkpoint-2")
    assert resumed.state.global_step == 6
    assert sorted(path.name for path in (tmp_path / "here").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def test_a_missing_checkpoint_is_reported(url: str) -> None:
    """The error lists the valid ones."""
    trainer_at(url, max_steps=2).train()
    with pytest.raises(CheckpointError, match="checkpoint-2"):
        trainer_at(url).train(resume_from_checkpoint=f"{url}/checkpoint-3")


def test_the_model_and_the_state_are_saved_to_a_url(url: str) -> None:
    """`save_model` and `save_state` write to the output folder, or to another URL, and overwrite existing files."""
    trainer = trainer_at(url, save_strategy="no", max_steps=1)
    for _ in range(2):
        trainer.train()
        trainer.save_model()
        trainer.save_state()
    trainer.save_model(f"{url}/export")
    storage = storage_for(url)
    assert names(storage) == ["export", "model.safetensors", "trainer_state.json", "training_args.json"]
    for path in ("model.safetensors", "export/model.safetensors"):
        assert same_weights(load(b"".join(storage.read(path))), weights(trainer))


def test_features_that_need_a_folder_are_refused(url: str) -> None:
    """Loggers that append to a file, and a missing bucket, are reported before the first step."""
    with pytest.raises(ConfigurationError, match="report_to='json_lines' needs a local folder"):
        trainer_at(url, {"loggers": None}, report_to="json_lines")
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        trainer_at("s3://no-such-bucket/run").train()


def test_a_run_with_two_tiers_continues_without_the_slow_one(
    url: str, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoints saved while the bucket is unreachable are uploaded after the next run; none is lost meanwhile."""
    down: list[bool] = []
    with flaky(address, lambda *_: fail(503) if down else None) as server:
        options = {"endpoint_url": server.address, "config_kwargs": {"retries": {"max_attempts": 0}}}
        unreachable = FsspecStorage(url, options, pauses=())
        tiers = TieredStorage(LocalStorage(tmp_path / "fast"), unreachable, pauses=(0.05,))

        for _ in trainer_at(url, {"storage": tiers}, max_steps=4).stream():
            down.append(True)
        before = len(server.requests)
        while len(server.requests) < before + 3:
            time.sleep(0.01)
        tiers.write("last", [b"word"])
        assert [text for text in caplog.messages if "is retried while the run continues" in text]
        with pytest.raises(OSError, match=r"Not yet uploaded to .*: checkpoint-2, checkpoint-4, .*last"):
            tiers.close(0.1)
    assert names(storage_for(url)) == []
    tiers = TieredStorage(LocalStorage(tmp_path / "fast"), storage_for(url))
    resumed = trainer_at(url, {"storage": tiers})
    resumed.train(resume_from_checkpoint=True)
    tiers.close()
    assert resumed.state.global_step == 6
    assert names(storage_for(url)) == ["checkpoint-4", "checkpoint-6", "last"]
    assert verify(storage_for(url), "checkpoint-4").manifest.step == 4


def test_a_local_folder_needs_no_object_store_package() -> None:
    """A run that saves to a local folder imports no object-store package."""
    code = "import sys, hexloop.app.assembly.storage as s; s.storage_for('here'); sys.exit('fsspec' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
