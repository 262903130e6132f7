"""Overrides of transformers' internal methods are called, or refused with the alternative."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import SequentialSampler

from hexloop import Trainer, TrainerCallback
from hexloop.app.trainer.legacy_names import INSTEAD, RETIRED
from hexloop.domain.errors import CheckpointError, ConfigurationError, RunStateError
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}

INTERNAL_HOOKS = frozenset(
    {
        "_clip_grad_norm",
        "_determine_best_metric",
        "_evaluate",
        "_finalize_training",
        "_finish_current_push",
        "_get_collator_with_removed_columns",
        "_get_dataloader",
        "_get_eval_sampler",
        "_get_grad_norm",
        "_get_learning_rate",
        "_get_num_items_in_batch",
        "_get_output_dir",
        "_get_train_sampler",
        "_hp_search_setup",
        "_init_training_state",
        "_inner_training_loop",
        "_load_best_model",
        "_maybe_log_save_evaluate",
        "_move_model_to_device",
        "_prepare_for_training",
        "_prepare_input",
        "_prepare_inputs",
        "_report_to_hp_search",
        "_run_epoch",
        "_save",
        "_save_checkpoint",
        "_save_optimizer_and_scheduler",
        "_save_rng_state",
        "_save_scaler",
        "_set_signature_columns_if_needed",
        "_track_num_input_tokens",
        "_validate_args",
        "_wrap_model",
    }
)
"""The internal methods that hexloop calls in a new run if a subclass overrides them, as transformers does."""

ON_RESUME = (
    "_load_callback_state",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_scaler",
    "_load_rng_state",
)
"""Those that a resume calls, in this order."""

ELSEWHERE = frozenset(
    {
        "_issue_warnings_after_load",
        "_push_from_checkpoint",
        "_remove_unused_columns",
        "_tune_save_checkpoint",
        "_update_auto_batch_size",
    }
)
"""Those for a `datasets.Dataset`, for loading outside of a run, for `auto_find_batch_size`, and for publishing and
searches, which are refused."""


def trained(folder: Path, kind: type[Trainer] = Trainer, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    trainer = small_trainer(folder, kind, parts, **given)
    trainer.train()
    return trainer


class Calling(Trainer):
    """Records the calls of its methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[str] = []
        super().__init__(*args, **kwargs)


class OverridingEveryMethod(Calling):
    """Overrides each method and calls the standard one."""


def _noting(name: str) -> Any:
    def call(self: Calling, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return getattr(super(OverridingEveryMethod, self), name)(*args, **kwargs)

    return call


for seam in (*INTERNAL_HOOKS, *ON_RESUME):
    setattr(OverridingEveryMethod, seam, _noting(seam))


# Which methods exist


def test_every_internal_method_of_transformers_is_covered() -> None:
    """Each can be overridden, or has a public alternative; none is both."""
    theirs = {
        name
        for name, value in vars(transformers.Trainer).items()
        if name.startswith("_") and not name.startswith("__") and callable(value)
    }

    assert theirs <= INTERNAL_HOOKS | set(ON_RESUME) | ELSEWHERE | INSTEAD.keys() | {"_build_accelerator_args"}
    assert not INTERNAL_HOOKS & INSTEAD.keys()
    assert all(hasattr(Trainer, name) for name in INTERNAL_HOOKS)


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_an_override_that_only_transformers_4_called_is_reported(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Transformers 5 ignores it, too, so that a class may have it as a method of its own."""
    own = trained(tmp_path, type("Own", (Trainer,), {name: lambda self: 7}))

    assert getattr(own, name)() == 7
    assert [name in record.getMessage() for record in caplog.records] == [True]
    assert RETIRED[name] in caplog.text
    assert not hasattr(transformers.Trainer, name)


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_an_ineffective_override_is_refused(tmp_path: Path, name: str) -> None:
    """At construction, by name and with the alternative, also if it is inherited from a base class."""
    between = type("Between", (Trainer,), {name: lambda self: None})
    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, type("Last", (between,), {}))

    assert f"Between overrides {name}, " in str(raised.value)
    assert INSTEAD[name] in str(raised.value)


def test_all_ineffective_overrides_are_reported_at_once(tmp_path: Path) -> None:
    """Together with every other problem of the configuration."""

    class Several(Trainer):
        def _mixed_mesh_grad_norm(self) -> None: ...
        def _prepare_context_parallel_inputs(self) -> None: ...

    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, Several, {"model": None})

    assert len(raised.value.problems) == 3


def test_reading_a_missing_method_names_the_alternative(tmp_path: Path) -> None:
    """It is an AttributeError, so that hasattr still works."""
    trainer = small_trainer(tmp_path)

    with pytest.raises(AttributeError, match="has no attribute '_has_mixed_mesh_grads': override _clip_grad_norm"):
        trainer._has_mixed_mesh_grads(trainer.model)
    with pytest.raises(AttributeError, match=r"has no attribute '_nothing'$"):
        _ = trainer._nothing
    assert not hasattr(trainer, "_mixed_mesh_grad_norm")


# Overrides


def test_overrides_that_call_the_standard_methods_change_nothing(tmp_path: Path) -> None:
    """All together: weights and history are equal, and each override was called."""
    parts = {"eval_dataset": rows(6)}
    given: dict[str, Any] = {
        **SAVING,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
    }
    trainer = trained(tmp_path / "all", OverridingEveryMethod, parts, **given)
    plain = trained(tmp_path / "none", parts=parts, **given)
    trainer.save_model(str(tmp_path / "model"))

    assert set(trainer.calls) == INTERNAL_HOOKS
    assert same_weights(weights(trainer), weights(plain))
    assert history(trainer) == history(plain)
    assert trainer.state.best_global_step == plain.state.best_global_step


class Backwards(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return list(range(len(self.train_dataset)))[::-1]


class OfFour(Trainer):
    def _get_train_sampler(self) -> Any:  # type: ignore[override]
        return list(range(len(self.train_dataset)))[::-1]


@pytest.mark.parametrize("kind", [Backwards, OfFour])
def test_an_overridden_sampler_sets_the_order(tmp_path: Path, kind: type[Trainer]) -> None:
    """Whether or not the method takes the dataset as an argument."""
    own = trained(tmp_path, kind)
    expected = trained(tmp_path, parts={"train_dataset": rows(16)[::-1]}, train_sampling_strategy="sequential")

    assert same_weights(weights(own), weights(expected))


def test_a_sampler_may_wrap_the_standard_one(tmp_path: Path) -> None:
    """The standard sampler yields the indices of the run's own order of each epoch."""

    class Wrapping(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Same(super()._get_train_sampler(train_dataset))

    class Same(torch.utils.data.Sampler[int]):
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def set_epoch(self, epoch: int) -> None:
            self.sampler.set_epoch(epoch)

        def __len__(self) -> int:
            return len(self.sampler)

        def __iter__(self) -> Iterator[int]:
            return iter(self.sampler)

    own, plain = trained(tmp_path, Wrapping, num_train_epochs=2), trained(tmp_path, num_train_epochs=2)

    assert same_weights(weights(own), weights(plain))


def test_returning_no_sampler_keeps_the_order(tmp_path: Path) -> None:
    """None keeps the standard order."""

    class NoSampler(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return None

    assert same_weights(weights(trained(tmp_path, NoSampler)), weights(trained(tmp_path)))


def test_an_overridden_evaluation_sampler_sets_the_order(tmp_path: Path) -> None:
    """It applies to evaluations and predictions."""

    class Half(Trainer):
        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            return list(SequentialSampler(eval_dataset))[::-2]

    trainer = small_trainer(tmp_path, Half)

    labels = trainer.predict(rows(6)).label_ids
    assert labels.ravel().tolist() == [float(row["labels"]) for row in rows(6)[::-2]]


class Halving(Trainer):
    def _prepare_inputs(self, inputs: Any) -> Any:
        return {**super()._prepare_inputs(inputs), "x": inputs["x"] / 2}


def test_overridden_prepare_inputs_is_used(tmp_path: Path) -> None:
    """The model receives the result of `_prepare_inputs`, in steps and in predictions."""
    halved = [{**row, "x": row["x"] / 2} for row in rows(16)]
    own, expected = trained(tmp_path, Halving), trained(tmp_path, parts={"train_dataset": halved})

    assert same_weights(weights(own), weights(expected))
    assert (own.predict(rows(4)).predictions == expected.predict(halved[:4]).predictions).all()


def test_overridden_save_is_used(tmp_path: Path) -> None:
    """`_save` may pass on other weights, and write further files, which checkpoints contain, too."""

    class Scaling(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            assert output_dir is not None
            super()._save(output_dir, {name: 2 * each for name, each in self.model.state_dict().items()})
            Path(output_dir, "extra.json").write_text(json.dumps({"step": self.state.global_step}))

    trainer = trained(tmp_path, Scaling, **SAVING)
    trainer.save_model(str(tmp_path / "model"))

    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], 2 * each) for name, each in trainer.model.state_dict().items())
    assert json.loads((tmp_path / "checkpoint-4" / "extra.json").read_text()) == {"step": 4}


class Heard(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)


def test_overridden_save_checkpoint_is_used(tmp_path: Path) -> None:
    """Callbacks are notified all the same; the method does not have to call the standard one."""

    class Noting(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            Path(str(self.args.output_dir), f"note-{self.state.global_step}").touch()

    heard = Heard()
    trained(tmp_path, Noting, {"callbacks": [heard]}, **SAVING)

    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["note-2", "note-4"]
    assert heard.steps == [2, 4]


def test_a_checkpoint_is_published_before_its_own_method_continues(tmp_path: Path) -> None:
    """Files that it writes next to the checkpoint afterwards stay there."""

    class Adding(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)
            Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}", "beside").touch()

    whole = trained(tmp_path, Adding, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path, Adding, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert (tmp_path / "checkpoint-4" / "beside").exists()
    assert same_weights(weights(again), weights(whole))


def test_overridden_load_best_model_is_used(tmp_path: Path) -> None:
    """Without calling the standard method, the run ends with its last weights."""

    class KeepingLast(Trainer):
        asked = 0

        def _load_best_model(self) -> None:
            self.asked += 1

    given = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 5.0, **SAVING}
    parts = {"eval_dataset": rows(6)}
    own = trained(tmp_path / "own", KeepingLast, parts, **given)
    last = trained(tmp_path / "last", parts=parts, **{**given, "load_best_model_at_end": False})

    assert own.asked == 1
    assert same_weights(weights(own), weights(last))


def test_overridden_maybe_log_save_evaluate_is_used(tmp_path: Path) -> None:
    """An override can log before and after; if it does not call the standard method, nothing is logged or saved."""

    class Around(Trainer):
        def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, model: Any, trial: Any, *rest: Any) -> None:
            before, loss = len(self.state.log_history), float(tr_loss)
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *rest)
            if len(self.state.log_history) > before:
                assert float(tr_loss) == 0
                self.log({"loss_again": loss})

    class Silent(Trainer):
        def _maybe_log_save_evaluate(  # type: ignore[override]
            self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, epoch: Any, ignore_keys_for_eval: Any
        ) -> None:
            assert model is self.model_wrapped
            assert epoch == 0

    around, silent = trained(tmp_path / "around", Around), trained(tmp_path / "silent", Silent, **SAVING)

    logged = around.state.log_history
    assert [entry["loss"] for entry in logged[:-1:2]] == [entry["loss_again"] for entry in logged[1:-1:2]]
    assert len(logged) == 9
    assert len(silent.state.log_history) == 1
    assert not list((tmp_path / "silent").glob("checkpoint-*"))


def test_overridden_loading_methods_are_called_on_resume(tmp_path: Path) -> None:
    """In the order of transformers; with the standard ones called, the resumed run is exact."""
    whole = trained(tmp_path, OverridingEveryMethod, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path, OverridingEveryMethod, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert [name for name in again.calls if name in ON_RESUME] == list(ON_RESUME)
    assert same_weights(weights(again), weights(whole))
    assert history(again) == history(whole)


@pytest.mark.parametrize("name", ["_load_from_checkpoint", "_load_optimizer_and_scheduler"])
def test_a_loading_method_that_loads_nothing_leaves_the_state_as_it_is(tmp_path: Path, name: str) -> None:
    """What it does not load, hexloop does not load either."""
    given: dict[str, Any] = {"optim": "adamw_torch", "num_train_epochs": 2, **SAVING}
    trained(tmp_path, **given)
    again = small_trainer(tmp_path, type("Loading", (Trainer,), {name: lambda *_: None}), **given)
    fresh = weights(again)
    steps = again.stream(str(tmp_path / "checkpoint-4"))
    next(steps)

    if name == "_load_from_checkpoint":
        assert same_weights(weights(again), fresh)
        assert again.optimizer.state
    else:
        assert not same_weights(weights(again), fresh)
        assert not again.optimizer.state
    steps.close()


def test_an_overridden_load_may_read_its_own_file(tmp_path: Path) -> None:
    """It gets the folder of the checkpoint, with what an overridden `_save` wrote there."""

    class OwnLayout(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            assert output_dir is not None
            save_file(self.model.state_dict(), Path(output_dir, "own.safetensors"))

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            self.model.load_state_dict(load_file(Path(resume_from_checkpoint, "own.safetensors")))

    whole = trained(tmp_path, OwnLayout, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path, OwnLayout, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert same_weights(weights(again), weights(whole))


def test_overridden_columns_are_kept(tmp_path: Path) -> None:
    """`_signature_columns` decides which columns reach the collate function; so does an overridden method."""
    seen: list[set[str]] = []

    def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        seen.append(set(samples[0]))
        return {name: torch.stack([torch.as_tensor(each[name]) for each in samples]) for name in ("x", "labels")}

    class Keeping(Trainer):
        def _set_signature_columns_if_needed(self) -> None:
            super()._set_signature_columns_if_needed()
            assert self._signature_columns is not None
            self._signature_columns.append("weight")

    data = [{**row, "weight": 1.0, "text": "a"} for row in rows(16)]
    parts = {"train_dataset": data, "data_collator": collate}
    trained(tmp_path, parts=parts)
    trained(tmp_path, Keeping, parts)
    assigned = small_trainer(tmp_path, parts=parts)
    assigned._signature_columns = ["x", "labels", "text"]
    assigned.train()

    kept = list(dict.fromkeys(map(frozenset, seen)))
    assert kept == [{"x", "labels"}, {"x", "labels", "weight"}, {"x", "labels", "text"}]


def test_overridden_selection_of_columns_is_used(tmp_path: Path) -> None:
    """For a `datasets.Dataset` and for other data; nothing else is left out then."""

    class Selecting(Trainer):
        def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
            assert description == "Training"
            return dataset.select_columns(["x", "labels"]).map(lambda row: {"x": [each / 2 for each in row["x"]]})

        def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
            assert description == "Training"
            return lambda samples: data_collator([{"x": row["x"] / 2, "labels": row["labels"]} for row in samples])

    data: list[dict[str, Any]] = [{**row, "text": "a"} for row in rows(16)]
    table = datasets.Dataset.from_list(
        [{**row, "x": row["x"].tolist(), "labels": row["labels"].tolist()} for row in data]
    )
    halved = [{**row, "x": row["x"] / 2} for row in rows(16)]
    expected = weights(trained(tmp_path, parts={"train_dataset": halved}))

    assert same_weights(weights(trained(tmp_path, Selecting, {"train_dataset": data})), expected)
    assert same_weights(weights(trained(tmp_path, Selecting, {"train_dataset": table})), expected)


def test_an_overridden_loader_is_used(tmp_path: Path) -> None:
    """`_get_dataloader` gets what transformers passes, for training, evaluation and prediction."""
    asked: list[tuple[Any, ...]] = []

    class OwnLoader(Trainer):
        def _get_dataloader(
            self, dataset: Any, description: str, batch_size: int, sampler_fn: Any = None, is_training: bool = False,
            dataloader_key: str | None = None,
        ) -> Any:  # fmt: skip
            asked.append((description, batch_size, is_training, dataloader_key))
            return torch.utils.data.DataLoader(dataset, batch_size, collate_fn=self.data_collator)

    trainer = trained(tmp_path, OwnLoader, {"eval_dataset": rows(6)})
    trainer.evaluate()
    trainer.predict(rows(4))
    expected = trained(tmp_path, train_sampling_strategy="sequential")

    assert same_weights(weights(trainer), weights(expected))
    size, eval_size = trainer.args.train_batch_size, trainer.args.eval_batch_size
    assert asked == [
        ("Training", size, True, None),
        ("Evaluation", eval_size, False, "eval"),
        ("test", eval_size, False, None),
    ]


def test_samplers_are_not_asked_for_iterable_data(tmp_path: Path) -> None:
    """As in transformers, an override that returns a sampler by index may stay for data that have none."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(rows(16))

    class Shuffled(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return torch.utils.data.RandomSampler(train_dataset)

    trained(tmp_path, Shuffled, {"train_dataset": rows(16)})
    own = trained(tmp_path, Shuffled, {"train_dataset": Stream()}, max_steps=4)
    assert same_weights(weights(own), weights(trained(tmp_path, parts={"train_dataset": Stream()}, max_steps=4)))


def test_overridden_gradient_norms_are_used(tmp_path: Path) -> None:
    """`_clip_grad_norm` replaces clipping, and `_get_grad_norm` what is logged."""

    class NotClipping(Trainer):
        def _clip_grad_norm(self, model: Any) -> Any:
            return None

        def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
            assert grad_norm is None
            return 7.0

    given: dict[str, Any] = {"logging_steps": 1, "optim": "sgd"}
    own = trained(tmp_path, NotClipping, max_grad_norm=0.01, **given)
    expected, clipped = trained(tmp_path, max_grad_norm=0.0, **given), trained(tmp_path, max_grad_norm=0.01, **given)

    assert same_weights(weights(own), weights(expected))
    assert not same_weights(weights(own), weights(clipped))
    assert {entry["grad_norm"] for entry in own.state.log_history if "loss" in entry} == {7.0}


def test_overridden_counts_rates_and_inputs_are_used(tmp_path: Path) -> None:
    """The item count of the loss, the learning rate that is logged, and the tensors of a batch."""
    counts: list[Any] = []

    class Counting(Trainer):
        def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
            return torch.tensor(100.0)

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            counts.append(float(num_items_in_batch))
            return super().training_step(model, inputs)

        def _get_learning_rate(self) -> float:
            return 0.125

        def _prepare_input(self, data: Any) -> Any:
            prepared = super()._prepare_input(data)  # which calls this method with each entry
            return {**prepared, "x": data["x"] / 2} if isinstance(data, dict) else prepared

    halved = [{**row, "x": row["x"] / 2} for row in rows(16)]
    own = trained(tmp_path, Counting, logging_steps=1)
    expected = trained(tmp_path, parts={"train_dataset": halved}, logging_steps=1)

    assert set(counts) == {100.0}
    assert {entry["learning_rate"] for entry in own.state.log_history if "loss" in entry} == {0.125}
    assert same_weights(weights(own), weights(expected))


def test_an_overridden_evaluation_is_used(tmp_path: Path) -> None:
    """`_evaluate` replaces the evaluations of a run, whose metrics decide the best checkpoint."""

    class Scoring(Trainer):
        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
            return {**super()._evaluate(trial, ignore_keys_for_eval), "eval_score": -self.state.global_step}

    given = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, **SAVING}
    trainer = trained(
        tmp_path, Scoring, {"eval_dataset": rows(6)}, metric_for_best_model="score", greater_is_better=True, **given
    )

    assert trainer.state.best_global_step == 2


def test_an_overridden_output_folder_is_used(tmp_path: Path) -> None:
    """Each run saves to the folder that the method returns, and resumes from there."""

    class InTrial(Trainer):
        def _get_output_dir(self, trial: Any = None) -> str:
            return str(tmp_path / "trial-1")

    whole = trained(tmp_path / "out", InTrial, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path / "out", InTrial, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "trial-1" / "checkpoint-4"))

    assert (tmp_path / "trial-1" / "checkpoint-8" / "manifest.json").is_file()
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    assert same_weights(weights(again), weights(whole))


def test_an_overridden_wrapper_is_used(tmp_path: Path) -> None:
    """The run trains what `_wrap_model` returns, and `_move_model_to_device` places the model."""
    moved: list[Any] = []

    class Doubled(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any, labels: Any = None) -> Any:
            return self.module(x=2 * x, labels=labels)

    class Wrapping(Trainer):
        def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
            return Doubled(model)

        def _move_model_to_device(self, model: Any, device: Any) -> None:
            moved.append(device)

    doubled = [{**row, "x": 2 * row["x"]} for row in rows(16)]
    own = trained(tmp_path, Wrapping)

    assert same_weights(weights(own), weights(trained(tmp_path, parts={"train_dataset": doubled})))
    assert set(moved) == {torch.device("cpu")}


def test_files_of_overridden_state_methods_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    """They are written beside hexloop's own state, which is complete without them."""

    class Writing(Trainer):
        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            Path(output_dir, "moments.txt").write_text(f"step {self.state.global_step}")

    whole = trained(tmp_path, Writing, num_train_epochs=2, **SAVING)
    again = small_trainer(tmp_path, Writing, num_train_epochs=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    manifest = json.loads((tmp_path / "checkpoint-4" / "manifest.json").read_text())
    assert "moments.txt" in json.dumps(manifest)
    assert (tmp_path / "checkpoint-4" / "moments.txt").read_text() == "step 4"
    assert same_weights(weights(again), weights(whole))


def test_weights_are_loaded_outside_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From a checkpoint or the folder of `save_model`; the best one without a run by its name in the state."""
    trainer = trained(tmp_path, **SAVING)
    trainer.save_model(str(tmp_path / "model"))
    first, second, third = (small_trainer(tmp_path) for _ in range(3))
    first._load_from_checkpoint(str(tmp_path / "checkpoint-4"))
    second._load_from_checkpoint(str(tmp_path / "model"))
    third.state.best_model_checkpoint = str(tmp_path / "checkpoint-4")
    third._load_best_model()

    assert all(same_weights(weights(each), weights(trainer)) for each in (first, second, third))
    with pytest.raises(CheckpointError, match="has no weights"):
        first._load_from_checkpoint(str(tmp_path / "nothing"))


class WithHead(Net):
    """The small model with a further layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.head = torch.nn.Linear(1, 1)


def test_weights_that_fit_in_part_are_loaded_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Outside of a run, missing and unknown names are logged, as in transformers; other shapes are refused."""
    plain, larger = small_trainer(tmp_path / "plain"), small_trainer(tmp_path, parts={"model": net(kind=WithHead)})
    larger.save_model(str(tmp_path / "larger"))
    plain.save_model(str(tmp_path / "plain"))
    with torch.no_grad():
        for parameter in [*plain.model.parameters(), *larger.model.parameters()]:
            parameter.zero_()
    plain._load_from_checkpoint(str(tmp_path / "larger"))
    assert "head.weight" in caplog.text
    assert "does not have" in caplog.text
    assert same_weights(weights(plain), dict(net().state_dict()))
    caplog.clear()
    larger._load_from_checkpoint(str(tmp_path / "plain"))
    assert "missing keys" in caplog.text
    assert same_weights({name: weights(larger)[name] for name in weights(plain)}, weights(plain))
    other = small_trainer(tmp_path, parts={"model": torch.nn.Sequential()})
    other.model.layers = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="shape"):
        other._load_from_checkpoint(str(tmp_path / "plain"))


def test_replacing_call_event_routes_every_event(tmp_path: Path) -> None:
    """A `call_event` that is set on the handler receives each event, also if no callback overrides it."""
    heard: list[str] = []
    trainer = small_trainer(tmp_path, parts={"eval_dataset": rows(6)}, logging_steps=2)
    call_event = trainer.callback_handler.call_event

    def listening(event: str, args: Any, state: Any, control: Any, **extras: Any) -> Any:
        heard.append(event)
        assert set(extras) <= {"logs", "metrics"}
        return call_event(event, args, state, control, **extras)

    trainer.callback_handler.call_event = listening
    trainer.train()
    trainer.evaluate()

    assert heard[:4] == ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step"]
    assert {"on_log", "on_epoch_end", "on_train_end", "on_prediction_step", "on_evaluate"} <= set(heard)


@pytest.mark.parametrize("name", ["_save_checkpoint", "_load_best_model", "_maybe_log_save_evaluate"])
def test_methods_of_a_run_are_refused_without_one(tmp_path: Path, name: str) -> None:
    """The error names what to call instead."""
    given: list[Any] = [None] * {"_save_checkpoint": 2, "_load_best_model": 0, "_maybe_log_save_evaluate": 6}[name]
    with pytest.raises(RunStateError, match="train"):
        getattr(small_trainer(tmp_path), name)(*given)
