"""Attributes and behaviours of transformers' Trainer that libraries rely on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from hexloop import Trainer, TrainerControl, TrainerState, TrainingArguments
from hexloop.app.trainer.legacy_names import ATTRIBUTES_INSTEAD, INSTEAD, RETIRED
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


def test_every_attribute_of_a_trainer_exists_or_names_the_public_way(tmp_path: Path) -> None:
    """The methods of the class, and the attributes of a constructed Trainer."""
    args = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    theirs = transformers.Trainer(nn.Linear(1, 1), args)
    ours = small_trainer(tmp_path)
    names = {name for name in (*dir(type(theirs)), *vars(theirs)) if not name.startswith("__")}

    missing = {name for name in names if not hasattr(ours, name)}
    assert missing <= INSTEAD.keys() | ATTRIBUTES_INSTEAD.keys()
    for name in missing:
        with pytest.raises(AttributeError, match=f"has no attribute {name!r}: "):
            getattr(ours, name)


@pytest.mark.parametrize(("heading", "table"), [("refused", INSTEAD), ("retired", RETIRED)])
def test_the_docs_list_every_refused_and_every_retired_override(heading: str, table: dict[str, str]) -> None:
    """With the advice of the error or of the warning."""
    page = (Path(__file__).parents[3] / "docs" / "while-training.md").read_text(encoding="utf-8")
    listed = page.partition(f"<!-- {heading} overrides -->")[2].partition("<!-- end -->")[0].strip().splitlines()

    assert listed[2:] == [f"| `{name}` | {instead} |" for name, instead in sorted(table.items())]


def test_state_and_control_have_the_methods_of_transformers(tmp_path: Path) -> None:
    """Intervals below 1 are fractions of the run; each switch is cleared by its own method."""
    state, control = TrainerState(), TrainerControl(True, True, True, True, True)
    state.compute_steps(TrainingArguments(str(tmp_path), logging_steps=0.15, save_steps=7), 10)
    state.init_training_references(small_trainer(tmp_path), 10, 3, None)
    control._new_step()
    after_step = TrainerControl(should_training_stop=True, should_epoch_stop=True)

    assert (state.logging_steps, state.save_steps, state.max_steps, state.num_train_epochs) == (2, 7, 10, 3)
    assert control == after_step
    control._new_epoch()
    control._new_training()
    assert control == TrainerControl()


class Embedding(nn.Module):
    """A model whose forward takes no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Contrasting(Trainer):
    """Computes the loss from the inputs alone, as trainers of embeddings do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.can_return_loss = True

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(inputs["x"])
        loss = (outputs - inputs["target"]).square().mean()
        return (loss, {"embedding": outputs}) if return_outputs else loss


def test_an_overridden_loss_without_labels_evaluates(tmp_path: Path) -> None:
    """The evaluation calls `compute_loss`, and not the model with the whole batch."""
    data = [{"x": row["x"], "target": row["labels"]} for row in rows(8)]
    parts = {"model": Embedding(), "train_dataset": data, "eval_dataset": data}
    trainer = small_trainer(tmp_path, Contrasting, parts, remove_unused_columns=False)
    trainer.train()

    assert trainer.evaluate()["eval_loss"] < 10


def test_batches_may_be_lists(tmp_path: Path) -> None:
    """With a collate function that returns the samples, the user's loss reads them; counters count none."""

    class Reading(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            assert isinstance(inputs, list)
            x = torch.stack([row["x"] for row in inputs])
            return model(x, torch.stack([row["labels"] for row in inputs]))["loss"]

    parts = {"data_collator": lambda samples: samples}
    trainer = small_trainer(tmp_path, Reading, parts, include_num_input_tokens_seen="all")
    trainer.train()

    assert trainer.state.global_step == 4
    assert trainer.state.num_input_tokens_seen == 0


# Attributes that code assigns


def test_attributes_may_be_assigned(tmp_path: Path) -> None:
    """As in transformers; each says what was assigned, and the strength of the noise on embeddings takes effect."""
    trainer = small_trainer(tmp_path)
    gathered = trainer.gather_function(torch.arange(3))
    trainer.gather_function, trainer.hub_model_id, trainer.is_in_train = len, "someone/model", True

    assert gathered.tolist() == [0, 1, 2]
    assert trainer.gather_function("four") == 4
    assert (trainer.hub_model_id, trainer.is_in_train) == ("someone/model", True)
    trainer.neftune_noise_alpha = 5.0
    assert trainer.args.neftune_noise_alpha == 5.0
    with pytest.raises(ConfigurationError, match="get_input_embeddings"):
        trainer.train()


class OwnEvaluation(Trainer):
    """Measures memory in an `evaluate` of its own, as copies of that method do."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        self._memory_tracker.start()
        loader = self.get_eval_dataloader(eval_dataset)
        output = self.evaluation_loop(loader, "Evaluation", metric_key_prefix=metric_key_prefix)
        self._memory_tracker.stop_and_update_metrics(output.metrics)
        return output.metrics or {}


def test_a_copied_evaluation_measures_memory(tmp_path: Path) -> None:
    """Under the names of the standard one, if `skip_memory_metrics` is False; within a run as a part of it."""
    parts = {"eval_dataset": rows(6)}
    skipping = small_trainer(tmp_path, OwnEvaluation, parts)
    measuring = small_trainer(tmp_path, OwnEvaluation, parts, skip_memory_metrics=False, eval_strategy="epoch")
    output = measuring.train()

    assert not [name for name in skipping.evaluate() if "_mem_" in name]
    assert "train_mem_cpu_alloc_delta" in output.metrics
    assert {name for name in measuring.evaluate() if "_mem_" in name} == {
        "eval_mem_cpu_alloc_delta", "eval_mem_cpu_peaked_delta"
    }  # fmt: skip


def test_checkpoints_are_sorted_and_rotated_on_demand(tmp_path: Path) -> None:
    """The oldest are removed, but never the best."""
    trainer = small_trainer(tmp_path, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-1")
    names = [Path(path).name for path in trainer._sorted_checkpoints()]
    by_time = [Path(path).name for path in trainer._sorted_checkpoints(str(tmp_path), use_mtime=True)]
    trainer._rotate_checkpoints()
    unlimited = len(trainer._sorted_checkpoints())
    trainer.args.save_total_limit = 2
    trainer._rotate_checkpoints(output_dir=str(tmp_path))
    left = {path.name for path in tmp_path.glob("checkpoint-*")}
    small_trainer(tmp_path, save_total_limit=1)._rotate_checkpoints()

    assert names == by_time == ["checkpoint-2", "checkpoint-3", "checkpoint-1", "checkpoint-4"]
    assert unlimited == 4
    assert left == {"checkpoint-1", "checkpoint-4"}
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-4"}


def test_checkpoints_of_several_runs_are_not_rotated(tmp_path: Path) -> None:
    """A Trainer that saved none of them removes none."""
    for _ in range(2):
        small_trainer(tmp_path, save_strategy="steps", save_steps=len(list(tmp_path.iterdir())) + 1).train()
    before = sorted(path.name for path in tmp_path.glob("checkpoint-*"))

    with pytest.raises(ConfigurationError, match="checkpoints of several runs"):
        small_trainer(tmp_path, save_total_limit=1)._rotate_checkpoints()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == before


def test_a_loss_of_labels_that_forward_does_not_take_evaluates(tmp_path: Path) -> None:
    """With labels in the data, the evaluation is by an overridden `compute_loss`, and the labels are returned."""

    class Own(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = {"logits": model(**inputs)}
            loss = (outputs["logits"] - labels).square().mean()
            return (loss, outputs) if return_outputs else loss

    parts = {"model": Embedding(), "eval_dataset": rows(6)}
    trainer = small_trainer(tmp_path, Own, parts, remove_unused_columns=False)
    trainer.train()
    output = trainer.predict(rows(6))

    assert trainer.evaluate()["eval_loss"] > 0
    assert output.label_ids.ravel().tolist() == [float(row["labels"]) for row in rows(6)]
    assert output.predictions.shape == (6, 1)


class Remembering(nn.Module):
    """Returns what its configuration says to ignore."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.config = SimpleNamespace(keys_to_ignore_at_inference=("past_key_values",))

    def forward(self, x: Any, labels: Any = None) -> Any:
        logits = self.layer(x)
        return {"loss": (logits - labels).square().mean(), "logits": logits, "past_key_values": x}


def test_no_ignored_keys_means_none(tmp_path: Path) -> None:
    """`ignore_keys=[]` keeps what the configuration of a model ignores, such as past_key_values."""
    trainer = small_trainer(tmp_path, parts={"model": Remembering()})
    logits, past = trainer.predict(rows(4), ignore_keys=[]).predictions

    assert trainer.predict(rows(4)).predictions.shape == (4, 1)
    assert (logits.shape, past.shape) == ((4, 1), (4, 4))


@pytest.mark.parametrize("of_text", [False, True])
def test_lists_report_the_samples_of_transformers(tmp_path: Path, of_text: bool) -> None:
    """Samples per second count the samples of the data, though the batches are lists of them; a resume is exact."""
    texts = [{"text": f"{row['labels'].item():.3f}"} for row in rows(15)]

    class Reading(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            if of_text:
                labels = torch.tensor([[float(row["text"])] for row in inputs])
                return model(labels.expand(-1, 4), labels)["loss"]
            x, labels = (torch.stack([row[name] for row in inputs]) for name in ("x", "labels"))
            return model(x, labels)["loss"]

    def reading() -> Any:
        parts = {"data_collator": lambda samples: samples, "train_dataset": texts if of_text else rows(15)}
        return small_trainer(
            tmp_path, Reading, parts, save_strategy="steps", save_steps=2, per_device_train_batch_size=5,
            num_train_epochs=2, remove_unused_columns=False,
        )  # fmt: skip

    whole, again = reading(), reading()
    metrics = whole.train().metrics
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert metrics["train_samples_per_second"] == pytest.approx(30 / metrics["train_runtime"], rel=0.02)
    assert metrics["train_steps_per_second"] == pytest.approx(6 / metrics["train_runtime"], rel=0.02)
    assert same_weights(weights(again), weights(whole))


def test_a_subclass_may_make_its_model_before_the_constructor(tmp_path: Path) -> None:
    """With `call_model_init`, once it has set `model_init`."""

    class Early(Trainer):
        def __init__(self, **given: Any) -> None:
            self.model_init = given["model_init"]
            self.early = self.call_model_init()
            super().__init__(**given)

    parts = {"model": None, "model_init": lambda: nn.Linear(1, 1)}
    trainer = small_trainer(tmp_path, Early, parts)

    assert isinstance(trainer.early, nn.Linear)
    assert isinstance(trainer.model, nn.Linear)
    assert trainer.model is not trainer.early


def test_a_model_that_takes_no_batch_has_no_operations(tmp_path: Path) -> None:
    """Its loss function calls it with parts of the batch; transformers returns 0, too."""

    class Asking(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return model(inputs["x"]).square().mean()

        def floating_point_ops(self, inputs: Any) -> float:
            return super().floating_point_ops(inputs)

    trainer = small_trainer(tmp_path, Asking, {"model": nn.Linear(4, 1)}, remove_unused_columns=False)

    assert trainer.train().metrics["total_flos"] == 0


def test_overrides_are_called_with_the_values_and_names_of_transformers(tmp_path: Path) -> None:
    """Names that differ from transformers', values that it always passes, and keywords that it uses."""
    calls: list[Any] = []

    def spied(base: Any) -> Any:
        class Spied(base):  # type: ignore[misc]
            def training_step(self, model: Any, inputs: Any, count: Any) -> Any:
                return super().training_step(model, inputs, count)

            def get_train_dataloader(self) -> Any:
                calls.append(("train data", self.is_in_train))
                return super().get_train_dataloader()

            def get_eval_dataloader(self, eval_dataset: Any) -> Any:
                calls.append(("eval data", len(eval_dataset)))
                return super().get_eval_dataloader(eval_dataset)

            def evaluation_loop(self, *values: Any, **named: Any) -> Any:
                calls.append((len(values), sorted(named), named["description"], self.is_in_train))
                return super().evaluation_loop(*values, **named)

            def log(self, logs: Any, start_time: Any = None) -> None:
                calls.append(("loss" in logs, None if start_time is None else "a time"))
                super().log(logs, start_time)

        return Spied

    given: dict[str, Any] = {
        "max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "report_to": "none",
        "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "output_dir": str(tmp_path),
    }  # fmt: skip
    seen = []
    for library, arguments in ((transformers.Trainer, transformers.TrainingArguments), (Trainer, TrainingArguments)):
        trainer = spied(library)(net(0.3), arguments(**given), train_dataset=rows(32), eval_dataset=rows(6))
        trainer.train()
        trainer.evaluate()
        trainer.predict(rows(6))
        assert not trainer.is_in_train
        seen.append(list(calls))
        calls.clear()

    assert seen[0] == seen[1]
