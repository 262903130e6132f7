"""Publishing a run on a hub in memory: what is published when, from where, and what is kept until the hub has it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from hexloop import TrainerCallback, reading_limits
from hexloop.adapters.hub import MemoryHub
from hexloop.app.assembly.publishing import BURST, INTERVAL
from hexloop.app.assembly.torch.saved_weights import SavedWeights
from hexloop.app.run import publishing
from hexloop.app.run.publishing import model_paths
from hexloop.domain.errors import ConfigurationError, RefusedError, StorageError, UnavailableError
from hexloop.ports.storage import File
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "push_to_hub": True, "hub_model_id": "me/model"}
MODEL = {"model.safetensors", "training_args.json"}


class FailingHub(MemoryHub):
    """Raises `error` as long as it is set. waits: called before each publication."""

    error: Exception | None = None
    attempts = 0

    def create(self, name: str, private: bool | None = None) -> str:
        self.attempts += 1
        if self.error is not None:
            raise self.error
        return super().create(name, private)

    def publish(self, name: str, files: Iterable[File], message: str, **options: Any) -> str:
        if self.error is not None:
            raise self.error
        return super().publish(name, files, message, **options)


def messages(hub: MemoryHub, name: str = "me/model") -> list[str]:
    return [version.message for version in hub.versions.get(name, [])]


def newest(hub: MemoryHub, name: str = "me/model") -> dict[str, bytes]:
    return hub.versions[name][-1].files


def outbox(folder: Path) -> list[str]:
    return [path.name for path in (folder / ".hexloop/outbox" / "hub").rglob("*")]


def test_the_model_of_each_save_is_published(tmp_path: Path) -> None:
    """With hub_always_push each save is a commit; the files are those of the checkpoint, and nothing is left over."""
    hub = MemoryHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING, hub_always_push=True)
    trainer.train()

    assert messages(hub) == [f"Training in progress, step {step}" for step in (1, 2, 3, 4)]
    assert newest(hub).keys() == MODEL
    assert newest(hub)["model.safetensors"] == (tmp_path / "checkpoint-4" / "model.safetensors").read_bytes()
    assert outbox(tmp_path) == []


def test_the_last_checkpoint_is_published_without_files_of_an_earlier_one(tmp_path: Path) -> None:
    """The model and the checkpoint are one commit, and the folder of the last checkpoint has its files alone."""
    hub = MemoryHub()
    hub.publish("me/model", [File("last-checkpoint/stale", [b"1"]), File("README.md", [b"2"])], "before")
    small_trainer(tmp_path, parts={"hub": hub}, **SAVING, hub_strategy="checkpoint", save_total_limit=1).train()

    saved = {path.name: path.read_bytes() for path in (tmp_path / "checkpoint-4").iterdir()}
    published = newest(hub)
    assert messages(hub)[-1] == "Training in progress, step 4"
    assert {path: data for path, data in published.items() if "/" in path} == {
        f"last-checkpoint/{name}": data for name, data in saved.items()
    }
    assert {path for path in published if "/" not in path} == MODEL | {"README.md"}


def test_a_published_checkpoint_can_be_resumed_from(tmp_path: Path) -> None:
    """A run that resumes from what was published ends with the weights of one that was not interrupted."""
    hub = MemoryHub()
    saving = {**SAVING, "hub_strategy": "all_checkpoints"}
    whole = small_trainer(tmp_path / "whole", parts={"hub": hub}, **saving)
    whole.train()
    assert {path.split("/")[0] for path in newest(hub) if "/" in path} == {f"checkpoint-{n}" for n in (1, 2, 3, 4)}
    for path, data in newest(hub).items():
        if path.startswith("checkpoint-2/"):
            (tmp_path / "down" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "down" / path).write_bytes(data)
    again = small_trainer(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "down" / "checkpoint-2"))

    assert same_weights(weights(again), weights(whole))


def test_only_the_best_model_is_published(tmp_path: Path) -> None:
    """With hub_strategy='best' a save that is not the best so far is not published."""
    hub = MemoryHub()
    losses = iter([4.0, 2.0, 3.0, 1.0])
    trainer = small_trainer(
        tmp_path, parts={"hub": hub, "eval_dataset": small_trainer(tmp_path / "x").train_dataset,
                         "compute_metrics": lambda _: {"grade": next(losses)}},
        **SAVING, hub_strategy="best", eval_strategy="steps", eval_steps=1, metric_for_best_model="grade",
        greater_is_better=False, hub_always_push=True,
    )  # fmt: skip
    trainer.train()
    assert messages(hub) == [f"Training in progress, step {step}" for step in (1, 2, 4)]


def test_the_best_needs_a_metric(tmp_path: Path) -> None:
    """Without one, hub_strategy='best' is refused, as nothing would be published."""
    with pytest.raises(ConfigurationError, match="hub_strategy='best', but without metric_for_best_model"):
        small_trainer(tmp_path, parts={"hub": MemoryHub()}, **SAVING, hub_strategy="best")


def test_nothing_is_published_before_the_end_with_the_strategy_end(tmp_path: Path) -> None:
    """`push_to_hub` then publishes the final model with a card, without checkpoints and hexloop's own files."""
    hub, began = MemoryHub(), list[int]()

    class Counts(TrainerCallback):
        def on_push_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            began.append(state.global_step)

    parts = {"hub": hub, "callbacks": [Counts()]}
    trainer = small_trainer(tmp_path, parts=parts, **SAVING, hub_strategy="end", hub_private_repo=True)
    trainer.train()
    assert messages(hub) == []
    assert began == []
    (tmp_path / "_notes").write_text("left out")
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary" / "words.txt").write_text("kept")
    trainer.model.model_tags = ["tiny"]
    commit = trainer.push_to_hub(license="mit", tags="mine")

    assert messages(hub) == ["End of training"]
    assert began == [4]
    assert newest(hub).keys() == MODEL | {"README.md", "vocabulary/words.txt"}
    card = newest(hub)["README.md"].decode()
    assert "- mine\n- tiny\n" in card
    assert "license: mit" in card
    assert (commit.oid, commit.commit_message) == ("1", "End of training")


def test_pushes_can_be_awaited_in_the_background(tmp_path: Path) -> None:
    """Without `blocking`, a Future of the commit is returned."""
    hub = MemoryHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING)
    future = trainer.push_to_hub("mine", blocking=False, revision="next")
    assert future.result(60).commit_message == "mine"
    assert trainer.push_in_progress is future
    assert hub.versions["me/model"][-1].branch == "next"


def test_a_saved_model_is_published(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`save_model` publishes too; a hub that fails then is reported in the log, and the push is kept."""
    hub = FailingHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING, hub_revision="next", outbox_grace=0)
    trainer.save_model()
    trainer.save_model(str(tmp_path / "elsewhere"))
    assert messages(hub) == ["Model save"] * 2
    assert {version.branch for version in hub.versions["me/model"]} == {"next"}
    hub.error = UnavailableError("down")
    trainer.save_model()
    assert "saved, but not published yet: down The push is kept" in caplog.text
    assert len(outbox(tmp_path)) > 0


def test_processes_agree_on_the_repository(tmp_path: Path) -> None:
    """The name that the hub states is set on the Trainer, also by a push without push_to_hub=True."""

    class CompletingHub(MemoryHub):
        def create(self, name: str, private: bool | None = None) -> str:
            return super().create(f"me/{name.rpartition('/')[2]}", private)

    for push in (True, False):
        trainer = small_trainer(tmp_path, parts={"hub": CompletingHub()}, push_to_hub=push, hub_model_id="model")
        trainer.push_to_hub()
        assert trainer.hub_model_id == "me/model"


@pytest.mark.parametrize("save_strategy", ["epoch", "steps"])
def test_messages_count_as_the_run_saves(tmp_path: Path, save_strategy: str) -> None:
    """Epochs if it saves after each, else steps."""
    hub = MemoryHub()
    small_trainer(tmp_path, parts={"hub": hub}, **{**SAVING, "save_strategy": save_strategy, "save_steps": 4}).train()
    assert messages(hub) == [f"Training in progress, {'epoch 1' if save_strategy == 'epoch' else 'step 4'}"]


def test_a_hub_that_is_down_changes_nothing_in_a_run(tmp_path: Path) -> None:
    """The run starts, ends as without a hub, and names what is left; the next run publishes it, and then its own."""
    plain = small_trainer(tmp_path / "plain", save_strategy="steps", save_steps=1)
    plain.train()
    hub = FailingHub()
    hub.error = UnavailableError("no route to the hub.")
    given = {**SAVING, "outbox_grace": 0.1, "save_total_limit": 1}
    with pytest.warns(UserWarning, match=r"cannot be reached \(no route to the hub\.\) The run starts"):
        trainer = small_trainer(tmp_path / "run", parts={"hub": hub}, **given)
    with pytest.warns(UserWarning, match=r"step 4' to me/model.*no route.*\n.*hexloop outbox flush .*run") as warned:
        trainer.train()
    assert len([each for each in warned if "Not published" in str(each.message)]) == 1
    assert same_weights(weights(trainer), weights(plain))
    assert history(trainer) == history(plain)

    trainer._publisher.close()
    hub.error = None
    small_trainer(tmp_path / "run", parts={"hub": hub}, **{**given, "outbox_grace": 60, "max_steps": 5}).train(True)
    assert messages(hub)[-1] == "Training in progress, step 5"
    assert set(messages(hub)) <= {f"Training in progress, step {step}" for step in (1, 2, 3, 4, 5)}
    assert outbox(tmp_path / "run") == []


def test_a_hub_that_does_not_answer_does_not_keep_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither at its start nor at its end; a progress bar shows that it waits."""
    monkeypatch.setattr(publishing, "ANSWER_WITHIN", 0.05)
    answers = threading.Event()

    class SilentHub(MemoryHub):
        def create(self, name: str, private: bool | None = None) -> str:
            answers.wait()
            return super().create(name, private)

    hub = SilentHub()
    with pytest.warns(UserWarning, match=r"memory did not answer within 0.05 s.*The run starts all the same"):
        trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING, outbox_grace=0.2, disable_tqdm=False)
    with pytest.warns(UserWarning, match=r"step 4' to me/model on memory \(not sent yet\)"):
        trainer.train()
    assert "Publishing" in capsys.readouterr().err
    answers.set()
    trainer._finish_current_push()
    assert messages(hub)[-1] == "Training in progress, step 4"


def test_a_checkpoint_whose_process_died_before_its_push_is_published(tmp_path: Path) -> None:
    """The next run pushes what it resumes from, unless its push was entered already; also if it has no step left."""
    small_trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    hub = MemoryHub()
    for _ in range(2):
        small_trainer(tmp_path, parts={"hub": hub}, **SAVING, hub_strategy="checkpoint").train("auto")
        assert messages(hub) == ["Training in progress, step 4"]
    saved = (tmp_path / "checkpoint-4" / "model.safetensors").read_bytes()
    assert newest(hub)["last-checkpoint/model.safetensors"] == newest(hub)["model.safetensors"] == saved


def test_a_refusal_is_an_error_before_the_run(tmp_path: Path) -> None:
    """A wrong token or name is known when the repository is created."""
    hub = FailingHub()
    hub.error = RefusedError("401: the token is wrong.")
    with pytest.raises(ConfigurationError, match="hub_model_id='me/model': 401: the token is wrong"):
        small_trainer(tmp_path, parts={"hub": hub}, **SAVING)


def test_a_refusal_during_a_run_is_reported_at_its_end(tmp_path: Path) -> None:
    """The run continues, and the push is kept for `hexloop outbox retry`."""
    hub = FailingHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING)
    hub.error = RefusedError("403: the token may not write.")
    with pytest.warns(UserWarning, match=r"refused \(403.*\n.*hexloop outbox retry"):
        trainer.train()
    assert trainer.state.global_step == 4
    with pytest.raises(RefusedError, match=r"403.*hexloop outbox retry"):
        trainer.push_to_hub()


def test_an_explicit_push_to_a_hub_that_is_down_raises(tmp_path: Path) -> None:
    """The error names the entry that keeps the push."""
    hub = FailingHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING, outbox_grace=0.1)
    hub.error = UnavailableError("500: try again.")
    with pytest.raises(UnavailableError, match=r"500: try again.*entry \d+ of the outbox.*hexloop outbox flush"):
        trainer.push_to_hub()


def test_the_newest_of_several_waiting_checkpoints_is_published(tmp_path: Path) -> None:
    """While the hub is down, each save replaces the one before; what all of them hold is on the disk once."""
    hub = FailingHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING, save_total_limit=1, outbox_grace=60)
    hub.error = UnavailableError("down")

    class Repairs(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            hub.error = None

    trainer.add_callback(Repairs())
    trainer.train()
    assert messages(hub)[-1] == "Training in progress, step 4"
    assert len(messages(hub)) <= 2


def test_a_repository_is_named_after_the_output_folder(tmp_path: Path) -> None:
    """If no name is given; `hub_model_id` is then the full name that the hub states."""
    hub = MemoryHub()
    trainer = small_trainer(tmp_path / "my-run", parts={"hub": hub}, **{**SAVING, "hub_model_id": None})
    assert trainer.hub_model_id == "my-run"
    trainer.train()
    assert list(hub.versions) == ["my-run"]


def test_old_methods_have_new_names(tmp_path: Path) -> None:
    """`init_git_repo` creates the repository, with a warning."""
    hub = MemoryHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, hub_model_id="me/model")
    with pytest.warns(FutureWarning, match="init_hf_repo"):
        trainer.init_git_repo(at_init=True)
    assert hub.versions == {"me/model": []}


def test_an_overridden_method_publishes_itself(tmp_path: Path) -> None:
    """A run calls `_push_from_checkpoint` for each save, and `_finish_current_push` at its end."""
    calls = list[str]()
    base = type(small_trainer(tmp_path / "x"))

    class Own(base):  # type: ignore[misc, valid-type]
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
            calls.append(Path(checkpoint_folder).name)

        def _finish_current_push(self) -> None:
            calls.append("end")

    hub = MemoryHub()
    small_trainer(tmp_path, Own, parts={"hub": hub}, **SAVING).train()
    assert calls == ["checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4", "end"]
    assert messages(hub) == []


def test_a_refused_push_is_the_exception_of_its_future(tmp_path: Path) -> None:
    """A program that waits for it does not wait for ever."""
    hub = FailingHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, hub_model_id="me/model")
    hub.error = RefusedError("403: no.")
    future = trainer.push_to_hub(blocking=False)
    with pytest.raises(RefusedError, match="403: no"):
        future.result(60)
    with pytest.warns(UserWarning, match=r"(?s)'End of training' to me/model on memory, refused.*hexloop outbox retry"):
        trainer._finish_current_push()


def test_a_model_is_published_for_review(tmp_path: Path) -> None:
    """With create_pr the change is proposed, and the main branch stays as it is."""
    hub = MemoryHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, hub_model_id="me/model")
    trainer.push_to_hub(create_pr=True)
    assert [version.branch for version in hub.versions["me/model"]] == ["review-1"]


def test_callbacks_are_called_before_the_model_is_saved(tmp_path: Path) -> None:
    """What they change in the model, or write to the output folder, is published."""
    hub = MemoryHub()

    class Writes(TrainerCallback):
        def on_push_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            (tmp_path / "notes.txt").write_text("mine")
            assert "model" in kwargs
            assert not (tmp_path / "model.safetensors").exists()

    small_trainer(tmp_path, parts={"hub": hub, "callbacks": [Writes()]}, hub_model_id="me/model").push_to_hub()
    assert newest(hub)["notes.txt"] == b"mine"


def test_a_card_that_waits_is_not_replaced_by_a_checkpoint(tmp_path: Path) -> None:
    """A checkpoint has neither a card nor other files of the output folder."""
    hub = FailingHub()
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **SAVING)
    hub.error = UnavailableError("down")
    future = trainer.push_to_hub(blocking=False)

    class Repairs(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            hub.error = None

    trainer.add_callback(Repairs())
    trainer.train()
    assert future.result(60).commit_message == "End of training"
    assert messages(hub) == ["End of training", "Training in progress, step 4"]
    assert "README.md" in newest(hub)


@pytest.mark.filterwarnings("ignore:The hub cannot be reached")
def test_the_outbox_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the limit, the oldest pushes are dropped, each with a line in the log, and the newest is kept."""
    hub = FailingHub()
    hub.error = UnavailableError("down")
    given = {**SAVING, "hub_strategy": "all_checkpoints", "save_total_limit": 1, "outbox_grace": 0, "max_steps": 8}
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **given, save_async=False)
    with reading_limits(outbox_bytes=1), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.train()
    texts = [*caplog.messages, *(str(each.message) for each in warned)]
    dropped = [text for text in texts if "this push was dropped: 'Training in progress, step" in text]
    assert len(dropped) >= 4
    assert "this push was dropped: 'Training in progress, step 8'" not in " ".join(texts)
    assert any("step 8' to me/model on memory" in text for text in texts)


def test_what_was_left_for_another_repository_stays(tmp_path: Path) -> None:
    """A run publishes to its own repository; other entries may be anybody's who can write to the folder."""
    hub = FailingHub()
    first = small_trainer(tmp_path, parts={"hub": hub}, **{**SAVING, "hub_model_id": "me/other", "outbox_grace": 0})
    hub.error = UnavailableError("down")
    with pytest.warns(UserWarning, match="Not published yet"):
        first.train()
    first._publisher.close()
    time.sleep(0.5)  # for an attempt that has begun
    hub.error = None
    second = small_trainer(tmp_path, parts={"hub": hub}, **SAVING, max_steps=5)
    with pytest.warns(UserWarning, match=r"left in the outbox by another run, and this one publishes to me/model"):
        second.train(True)
    assert list(hub.versions) == ["me/other", "me/model"]
    assert messages(hub, "me/other") == []
    assert messages(hub)[-1] == "Training in progress, step 5"


def test_adapters_are_published_without_the_whole_model() -> None:
    """A checkpoint of a model with adapters of PEFT has both, because a run resumes from the whole model."""
    adapters = ["adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.json"]
    run = ["model.safetensors", "optimizer.safetensors", "run_state.json", "trainer_state.json", "manifest.json"]
    assert model_paths([*adapters, *run], SavedWeights.published) == adapters
    assert model_paths(["config.json", "adapter_config.json", *run], SavedWeights.published) == [
        "config.json",
        "adapter_config.json",
        "model.safetensors",
    ]


def test_a_run_that_saves_at_a_url_publishes_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outbox is in the state folder of the user; what was left there is published by the next run."""
    monkeypatch.setenv("HEXLOOP_STATE_HOME", str(tmp_path))
    place: Any = f"memory://{tmp_path.name}/run"
    hub, saving = FailingHub(), {**SAVING, "hub_strategy": "checkpoint"}

    def trainer(**given: Any) -> Any:
        return small_trainer(place, parts={"hub": hub}, **{**saving, **given})

    first = trainer(outbox_grace=0)
    hub.error = UnavailableError("down")
    with pytest.warns(UserWarning, match=f"(?s)step 4.*hexloop outbox flush {place}$"):
        first.train()
    kept = [path.read_text() for path in sorted(tmp_path.glob("run-*/.hexloop/outbox/hub/*.json"))]
    assert "last-checkpoint" in kept[-1]
    first._publisher.close()

    hub.error = None
    trainer(max_steps=5).train(True)
    assert messages(hub)[-1] == "Training in progress, step 5"
    assert {"model.safetensors", "last-checkpoint/manifest.json"} <= newest(hub).keys()
    assert not list(tmp_path.glob("run-*/.hexloop/outbox/hub/*.json"))
    with pytest.raises(ConfigurationError, match="publishes the files of a local folder"):
        trainer().push_to_hub()


def test_commits_are_fewer_than_the_hub_takes_in_an_hour() -> None:
    """The Hugging Face Hub takes 128."""
    assert BURST + 3600 / INTERVAL < 128


def test_a_full_outbox_is_reported_and_the_run_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a push cannot be kept, the log says so."""
    trainer = small_trainer(tmp_path, parts={"hub": MemoryHub()}, **SAVING)
    (tmp_path / ".hexloop").mkdir(exist_ok=True)
    (tmp_path / ".hexloop/outbox").write_text("not a folder")
    trainer.train()
    (told,) = [text for text in caplog.messages if "Publishing checkpoint-4 failed" in text]
    assert "The run continues" in told
    assert trainer.state.global_step == 4


def test_errors_of_a_hub_are_storage_errors() -> None:
    """So that scripts can catch both kinds at once."""
    assert issubclass(RefusedError, StorageError)
    assert issubclass(UnavailableError, StorageError)


@pytest.mark.parametrize("averages", ["instead", "beside"])
def test_averages_are_published(averages: str, tmp_path: Path) -> None:
    """In place of the trained weights or in a folder beside them, and never what only a resumed run needs."""
    hub = MemoryHub()
    given: dict[str, Any] = {
        "push_to_hub": True,
        "hub_model_id": "me/model",
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": 4,
    }
    trainer = small_trainer(tmp_path, parts={"hub": hub}, **given, ema_decay=0.5, ema_weights=averages)
    trainer.train()
    trainer.push_to_hub()
    published = newest(hub)
    files = {name: load(data) for name, data in published.items() if name.endswith(".safetensors")}
    assert files.keys() == {"model.safetensors", *(["ema/model.safetensors"] if averages == "beside" else [])}
    assert same_weights(files["model.safetensors"], weights(trainer))
    for path in ("checkpoint-4/ema/model.safetensors",) if averages == "beside" else ():
        assert same_weights(files["ema/model.safetensors"], load((tmp_path / path).read_bytes()))
