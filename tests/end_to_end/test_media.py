"""Media of runs, from the Trainer and from callbacks: in the run's folder, at loggers, over resumes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hexloop import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback
from hexloop.adapters.logger import RecordingLogger
from hexloop.adapters.logger.tracker import ALL_MEDIA
from hexloop.app.pages.media import media_in
from hexloop.domain import media_log
from hexloop.domain.folders import Folder
from hexloop.domain.run_folder import MEDIA
from hexloop.ports.logger import Media
from tests.end_to_end.sequences.models import digits, padded, t5
from tests.end_to_end.small.trainers import DEFAULTS, history, same_weights, small_trainer, weights


class Logging(TrainerCallback):
    """Logs media at each step. act: what else it does then."""

    def __init__(self, act: Callable[[Any], None] = lambda state: None) -> None:
        self.act = act

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        state.log_media("note", f"step {step}")
        state.log_media("pixels", torch.full((3, 4, 5), step / 10))
        state.log_media("tables", [[{"step": step}], [{"step": -step}]][0])
        state.log_media("weights", torch.arange(10.0) * step, bins=4)
        state.log_media("sound", np.zeros(80), "audio", rate=8000)
        self.act(state)


def names_and_steps(folder: Path, run: str) -> list[tuple[str, int]]:
    return [(each.media.name, each.media.step) for each in media_in(folder, run).entries]


NAMES = ["note", "pixels", "tables", "weights", "sound"]


def test_media_are_in_the_folder_and_at_the_loggers(tmp_path: Path) -> None:
    """With their contents; the loop's own loggers get none."""
    logger, in_loop = RecordingLogger(in_loop=False, media=ALL_MEDIA), RecordingLogger()
    contents: list[tuple[str, Any]] = []
    take = logger.write_media

    def keep(media: Media) -> None:
        contents.append((media.name, media.content if media.kind != "image" else Path(media.file).read_bytes()[:4]))
        take(media)

    logger.write_media = keep  # type: ignore[method-assign]
    trainer = small_trainer(tmp_path, parts={"callbacks": [Logging()], "loggers": [logger, in_loop]})
    trainer.train()
    run = trainer.state.run_state.run
    assert names_and_steps(tmp_path, run) == [(name, step) for step in range(1, 5) for name in NAMES]
    assert [(each.name, each.step) for each in logger.logged_media] == names_and_steps(tmp_path, run)
    assert logger.logged_media[0].epoch == 0.25
    assert contents[:3] == [
        ("note", {"text": "step 1"}),
        ("pixels", b"\x89PNG"),
        ("tables", {"columns": ["step"], "rows": [[1]]}),
    ]
    assert in_loop.logged_media == []


def test_a_run_is_the_same_with_media(tmp_path: Path) -> None:
    """To the last bit, random numbers included."""
    with_media = small_trainer(tmp_path / "one", parts={"callbacks": [Logging()]}, num_train_epochs=2)
    without = small_trainer(tmp_path / "two", num_train_epochs=2)
    for trainer in (with_media, without):
        trainer.train()
    assert same_weights(weights(with_media), weights(without))
    assert history(with_media) == history(without)
    assert (tmp_path / "one" / MEDIA).is_dir()
    assert not (tmp_path / "two" / MEDIA).exists()


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    """It logs the steps after its checkpoint again, and loggers continue."""

    def stop(state: Any) -> None:
        if state.global_step == 3:
            raise RuntimeError("the machine failed")

    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 2}
    first = small_trainer(tmp_path, parts={"callbacks": [Logging(stop)]}, **given)
    with pytest.raises(RuntimeError, match="the machine failed"):
        first.train()
    logger = RecordingLogger(in_loop=False, media=ALL_MEDIA)
    resumed = small_trainer(tmp_path, parts={"callbacks": [Logging()], "loggers": [logger]}, **given)
    resumed.train(resume_from_checkpoint=True)
    run = resumed.state.run_state.run
    assert run == first.state.run_state.run
    assert names_and_steps(tmp_path, run) == [(name, step) for step in range(1, 9) for name in NAMES]
    assert [each.step for each in logger.logged_media if each.name == "note"] == [3, 4, 5, 6, 7, 8]


def test_kinds_that_a_logger_does_not_take_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not for each step; it gets the others, and its records."""
    logger = RecordingLogger(in_loop=False, media={"text"})
    trainer = small_trainer(tmp_path, parts={"callbacks": [Logging()], "loggers": [logger]})
    with caplog.at_level(logging.WARNING, "hexloop.loggers"):
        trainer.train()
    assert {each.name for each in logger.logged_media} == {"note"}
    told = [each.getMessage() for each in caplog.records if "does not take them" in each.getMessage()]
    assert sorted(each.split()[4] for each in told) == ["audio", "histogram", "image", "table"]
    assert len(logger.records) == 5


def test_a_logger_that_fails_on_media_gets_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first medium of a kind is reported. All records and the other media arrive, and the run is finished."""
    logger = RecordingLogger(in_loop=False, media=ALL_MEDIA)
    write = logger.write_media

    def fail(media: Media) -> None:
        if media.kind in ("image", "audio"):
            raise ValueError("no pictures here")
        write(media)

    logger.write_media = fail  # type: ignore[method-assign]
    trainer = small_trainer(tmp_path, parts={"callbacks": [Logging()], "loggers": [logger]}, logger_grace=5)
    with caplog.at_level(logging.WARNING, "hexloop.loggers"):
        trainer.train()
    told = [each.getMessage() for each in caplog.records if "no pictures here" in each.getMessage()]
    assert len(told) == 2
    assert all("are left out; they are in the folder of the run" in each for each in told)
    assert {each.name for each in logger.logged_media} == {"note", "tables", "weights"}
    assert len(logger.records) == 5
    assert len(names_and_steps(tmp_path, trainer.state.run_state.run)) == 20


def test_a_logger_that_hangs_keeps_no_step_waiting(tmp_path: Path) -> None:
    """Every step ends while it hangs in its first medium; the end of the run waits for a bounded time."""
    released, steps = threading.Event(), list[int]()
    logger = RecordingLogger(in_loop=False, media=ALL_MEDIA)
    logger.write_media = lambda media: released.wait(60) and None  # type: ignore[method-assign, assignment]
    callback = Logging(lambda state: steps.append(state.global_step))
    trainer = small_trainer(tmp_path, parts={"callbacks": [callback], "loggers": [logger]}, logger_grace=0.2)
    with pytest.warns(UserWarning, match="Not logged yet"):
        trainer.train()
    released.set()
    assert steps == [1, 2, 3, 4]


def test_a_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends as without media, and says once that they are not kept."""
    plain = small_trainer(tmp_path / "plain")
    plain.train()
    replace = Folder.replace

    def fail(folder: Folder, path: str, data: bytes, mode: int = 0o666) -> None:
        if folder.inside == MEDIA:
            raise OSError(28, "No space left on device")
        replace(folder, path, data, mode)

    monkeypatch.setattr(Folder, "replace", fail)
    trainer = small_trainer(tmp_path / "full", parts={"callbacks": [Logging()]})
    with caplog.at_level(logging.WARNING, "hexloop.loggers"):
        trainer.train()
    assert same_weights(weights(trainer), weights(plain))
    assert len([each for each in caplog.records if "No space left" in each.getMessage()]) == 1


def test_what_cannot_be_logged_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By its name, in the log; the run continues."""
    parts = {"callbacks": [Logging(lambda state: state.log_media("bad", object()))]}
    trainer = small_trainer(tmp_path, parts=parts)
    trainer.train()
    (told,) = [text for text in caplog.messages if "'bad' cannot be logged" in text]
    assert "may be several things" in told


def test_the_trainer_logs_at_its_step(tmp_path: Path) -> None:
    """Between two steps of a stream; before and after a run, nothing happens."""
    trainer = small_trainer(tmp_path)
    trainer.log_media("early", "text")
    for event in trainer.stream():
        if type(event).__name__ == "StepEnded":
            trainer.log_media("own", ["a", "b"], caption=["first"])
    trainer.log_media("late", "text")
    found = media_in(tmp_path, trainer.state.run_state.run).entries
    places = [(each.media.name, each.media.step, each.media.index, each.media.caption) for each in found]
    assert places == [("own", step, index, "" if index else "first") for step in range(1, 5) for index in (0, 1)]


def test_the_folder_is_limited(tmp_path: Path) -> None:
    """By `media_limit`, in megabytes."""
    noise = np.random.default_rng(0)

    def log(state: Any) -> None:
        state.log_media("noise", noise.integers(0, 255, (40, 40, 3), np.uint8))

    trainer = small_trainer(tmp_path, parts={"callbacks": [Logging(log)]}, num_train_epochs=10, media_limit=0.05)
    trainer.train()
    assert sum(each.stat().st_size for each in (tmp_path / MEDIA).iterdir()) <= 50_000
    steps = [step for name, step in names_and_steps(tmp_path, trainer.state.run_state.run) if name == "noise"]
    assert (steps[0], steps[-1]) == (1, 40)


def test_tensorboard_has_all_kinds(tmp_path: Path) -> None:
    """Read back from its event files."""
    trainer = small_trainer(tmp_path, parts={"callbacks": [Logging()], "loggers": None}, report_to=["tensorboard"])
    trainer.train()
    (folder,) = (tmp_path / "runs").iterdir()
    found = EventAccumulator(str(folder), size_guidance={"images": 0, "audio": 0, "histograms": 0, "tensors": 0})
    found.Reload()
    assert [each.step for each in found.Images("pixels")] == [1, 2, 3, 4]
    assert [(each.width, each.height) for each in found.Images("pixels")] == [(5, 4)] * 4
    assert found.Audio("sound")[0].sample_rate == 8000
    assert list(found.Histograms("weights")[0].histogram_value.bucket)[-4:] == [3, 2, 2, 3]
    texts = [each.tensor_proto.string_val[0].decode() for each in found.Tensors("tables/text_summary")]
    assert texts[0] == "| step |\n| --- |\n| 1 |"
    assert [each.step for each in found.Tensors("note/text_summary")] == [1, 2, 3, 4]


class Decoder:
    """A tokenizer whose tokens are numbers. failure: what `batch_decode` raises."""

    pad_token_id, eos_token_id, bos_token_id = 0, 1, None

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.threads = failure, set[int]()

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        self.threads.add(threading.get_ident())
        if self.failure is not None:
            raise self.failure
        return [" ".join(str(each) for each in row if each > 1) for row in rows]

    def save_pretrained(self, folder: str) -> None:
        """No-op."""


def generating(folder: Path, decoder: Decoder, **given: Any) -> Trainer:
    values = {
        **DEFAULTS,
        "predict_with_generate": True,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "max_steps": 4,
        **given,
    }
    arguments = Seq2SeqTrainingArguments(output_dir=str(folder), generation_max_length=6, **values)
    metrics: dict[str, Any] = {"compute_metrics": lambda prediction: {}}  # without metrics nothing is generated
    return Seq2SeqTrainer(t5(), arguments, padded, digits(16), digits(6), decoder, loggers=[], **metrics)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
class TestGeneratedSamples:
    def test_the_first_samples_of_each_evaluation_are_a_table(self, tmp_path: Path) -> None:
        """Decoded in the thread of the run: a tokenizer may be used by one thread at a time."""
        decoder = Decoder()
        trainer = generating(tmp_path, decoder, generation_samples=5)
        trainer.train()
        logged = media_in(tmp_path, trainer.state.run_state.run)
        assert [(each.media.name, each.media.step) for each in logged.entries] == [
            ("generated samples", 2),
            ("generated samples", 4),
        ]
        content = logged.content(logged.entries[0].media)
        assert content is not None
        assert content["columns"] == ["input", "generated", "expected"]
        assert len(content["rows"]) == 5
        expected = [
            " ".join(str(each) for each in row["labels"] if each > 1) for row in map(digits(6).__getitem__, range(5))
        ]
        assert [row[2] for row in content["rows"]] == expected
        assert decoder.threads == {threading.get_ident()}
        trainer.evaluate()  # outside of a run nothing is logged

    def test_they_can_be_turned_off(self, tmp_path: Path) -> None:
        """Then nothing is decoded."""
        decoder = Decoder()
        generating(tmp_path, decoder, generation_samples=0).train()
        assert decoder.threads == set()
        assert not (tmp_path / MEDIA).exists()

    def test_a_tokenizer_that_fails_stops_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The log tells of it."""
        trainer = generating(tmp_path, Decoder(ValueError("no such token")))
        trainer.train()
        assert [text for text in caplog.messages if "cannot be decoded (ValueError: no such token)" in text]
        assert trainer.state.global_step == 4


def test_a_process_that_does_not_write_logs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that scripts call `log_media` on every rank."""
    monkeypatch.setattr(media_log.MediaLog, "put", lambda *given: pytest.fail("it is written"))
    trainer = small_trainer(tmp_path)
    monkeypatch.setattr(type(trainer.adapters.mesh), "writes", False)
    for _ in trainer.stream():
        trainer.log_media("own", "text")


def test_a_run_in_a_folder_with_hostile_media_continues(tmp_path: Path) -> None:
    """Whatever lies there is neither followed nor believed."""
    folder = tmp_path / MEDIA
    folder.mkdir(parents=True)
    lines: list[Any] = [{"run": "a"}, [1], {"name": "x" * 10**6}, {"file": "../../x.png"}]
    (folder / "media.jsonl").write_text("\n".join(json.dumps(each) for each in lines) + "\n{cut")
    trainer = small_trainer(tmp_path, parts={"callbacks": [Logging()]})
    trainer.train()
    assert len(names_and_steps(tmp_path, trainer.state.run_state.run)) == 20
