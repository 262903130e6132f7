"""Loggers, hubs, devices and evaluators without a framework, beyond their contracts."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from hexloop.adapters.trainable.least_squares import Row
from hexloop.domain.errors import StorageError
from hexloop.ports.device import Memory
from hexloop.ports.logger import Record, RunInformation
from hexloop.ports.storage import File
from hexloop.testing import (
    FolderHub,
    LeastSquaresEvaluator,
    LinearModel,
    MemoryHub,
    NoHub,
    RecordingLogger,
    SimulatedDevice,
)


def test_a_recording_logger_keeps_everything_in_order() -> None:
    """Runs, records and ends can be read in the order of the calls."""
    logger = RecordingLogger()
    information, record = RunInformation("run"), Record(1, 0.1, {"loss": 1.0})
    logger.start(information)
    logger.write(record)
    logger.finish()

    assert (logger.runs, logger.records, logger.finished) == ([information], [record], 1)


def test_a_recording_logger_can_fail() -> None:
    """Every call is recorded and raises the configured failure."""
    logger = RecordingLogger(failure=ConnectionError("the server is gone"))

    with pytest.raises(ConnectionError, match="gone"):
        logger.start(RunInformation("run"))
    with pytest.raises(ConnectionError, match="gone"):
        logger.write(Record(1, 0.1, {}))
    with pytest.raises(ConnectionError, match="gone"):
        logger.finish()

    assert (len(logger.runs), len(logger.records), logger.finished) == (1, 1, 1)


def test_a_memory_hub_keeps_the_messages() -> None:
    """Published versions can be read with their message."""
    hub = MemoryHub()
    hub.publish("model", [File("a", [b"1"])], "first try")

    assert hub.versions["model"][0].message == "first try"


def test_no_hub_suggests_what_to_pass() -> None:
    """Publishing and fetching without a hub raise a StorageError that names the argument to pass."""
    with pytest.raises(StorageError, match=r"'model'.*hub="):
        NoHub().publish("model", [], "")
    with pytest.raises(StorageError, match=r"'model'.*hub="):
        NoHub().fetch("model")


def test_a_folder_hub_is_a_plain_tree(tmp_path: Path) -> None:
    """A version is a folder under the model's name, with the message beside the files."""
    version = FolderHub(tmp_path).publish("me/model", [File("config.json", [b"{}"])], "first try")

    folder = tmp_path / "me" / "model" / version
    assert (folder / "config.json").read_bytes() == b"{}"
    assert (folder / ".message.txt").read_text() == "first try"
    assert [path.name for path in folder.parent.iterdir()] == [version]


def test_a_failed_publication_leaves_no_files(tmp_path: Path) -> None:
    """A file that conflicts with another name raises StorageError and leaves no partial version."""
    with pytest.raises(StorageError, match="cannot be published"):
        FolderHub(tmp_path).publish("model", [File("a", [b"1"]), File("a", [b"2"])], "twice")

    assert list((tmp_path / "model").iterdir()) == []


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    """A root that is a file raises StorageError."""
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="Choose another folder"):
        FolderHub(tmp_path / "file").publish("model", [], "")


@pytest.mark.parametrize("name", ["../model", "a/../../b", "", "/model"])
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    """Neither a model nor a file can be outside of the hub."""
    hub = FolderHub(tmp_path / "hub")

    with pytest.raises(StorageError, match="leads out"):
        hub.publish(name, [], "")
    with pytest.raises(StorageError, match="leads out"):
        hub.publish("model", [File(name, [b"1"])], "")
    assert not (tmp_path / "model").exists()


def test_concurrent_publications_are_complete(tmp_path: Path) -> None:
    """Every version is complete and has its own number, even if many publish the same model at once."""
    versions: list[str] = []

    def publish(number: int) -> None:
        for _ in range(10):
            versions.append(FolderHub(tmp_path).publish("model", [File("a", [bytes([number])] * 9)], ""))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(int, versions)) == list(range(1, 41))
    written = [(tmp_path / "model" / version / "a").read_bytes() for version in versions]
    assert sorted(written) == sorted(bytes([number]) * 9 for number in range(4) for _ in range(10))


def test_a_simulated_device_counts_its_memory() -> None:
    """Allocated memory is counted as used, the maximum is the peak, and more than is available is refused."""
    device = SimulatedDevice(total=100, precisions=("fp32", "bf16"), pins_memory=True)
    device.allocate(60)
    device.free(20)
    assert device.memory() == Memory(used=40, peak=60, total=100)

    with pytest.raises(RuntimeError, match="has 60 free bytes, fewer than the 61"):
        device.allocate(61)

    assert device.memory() == Memory(used=40, peak=60, total=100)
    device.memory_now = Memory(1, 2, 3)
    assert device.memory() == Memory(1, 2, 3)
    assert device.capabilities.precisions == {"fp32", "bf16"}
    assert device.capabilities.pins_memory
    assert device.is_out_of_memory(MemoryError())


def test_an_evaluation_matches_a_hand_calculation() -> None:
    """Errors 1 and -3 have the mean square 5 and the maximum 3."""
    model = LinearModel()
    model.parameters[:] = [2.0, 1.0]
    rows: list[Row] = [((1.0,), 2.0), ((2.0,), 8.0)]
    evaluator = LeastSquaresEvaluator(model, rows, batch_size=1, prefix="test_")
    evaluator.begin()

    assert [evaluator.step(batch) for batch in evaluator.batches()] == [1, 1]

    assert evaluator.metrics() == {"test_loss": 5.0, "test_max_error": 3.0}
    evaluator.end()


def test_metrics_of_an_empty_evaluation_are_nan() -> None:
    """Without rows the metrics are nan; a model that was in evaluation mode before stays in it."""
    model = LinearModel()
    model.train(False)
    evaluator = LeastSquaresEvaluator(model, [])
    evaluator.begin()
    assert list(evaluator.batches()) == []
    assert all(map(math.isnan, evaluator.metrics().values()))
    evaluator.end()

    assert not model.training
