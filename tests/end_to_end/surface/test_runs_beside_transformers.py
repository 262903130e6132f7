"""What tests of users look at during and after a run is the same in both libraries."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

import hexloop
from tests.end_to_end.surface.beside import (
    Classifier,
    Observation,
    arguments,
    assert_same,
    samples,
    trained,
    trainer,
)

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch"}


class Accuracies:
    """Metrics with the given values, one after another."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"accuracy": self.values.pop(0)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(samples(20))


class Failing(Classifier):
    """Has no memory for more than `room` samples in training, or for any in evaluation."""

    room, message, evaluates = 2, "", True

    def forward(self, x: Any, labels: Any = None) -> Any:
        if len(x) > self.room if self.training else not self.evaluates:
            raise RuntimeError(self.message)
        return super().forward(x, labels)


class NotFinite(Classifier):
    def loss(self, logits: Any, labels: Any) -> Any:
        return super().loss(logits, labels) * float("nan")


def logs(**given: Any) -> Observation:
    return lambda library, folder: trained(library, folder, **given).state.log_history


def names_of_logs(**given: Any) -> Observation:
    return lambda library, folder: [
        [list(each), each["epoch"], each["step"]] for each in trained(library, folder, **given).state.log_history
    ]


def state_of(*values: float, **given: Any) -> Observation:
    """The state, and the checkpoints that are left."""

    def observe(library: ModuleType, folder: Path) -> Any:
        parts = {"compute_metrics": Accuracies(*values)} if values else {}
        made = trained(library, folder, parts=parts, **given)
        state = {name: each for name, each in _fields(made.state).items() if name not in ("log_history", "total_flos")}
        return state, len(made.state.log_history), sorted(each.name for each in folder.glob("checkpoint-*"))

    return observe


def _fields(state: Any) -> dict[str, Any]:
    import dataclasses

    return {each.name: getattr(state, each.name) for each in dataclasses.fields(state)}


def sampler_of(library: ModuleType, folder: Path, strategy: str) -> Any:
    made = trainer(library, folder, train_sampling_strategy=strategy)
    training, evaluation = made._get_train_sampler(), made._get_eval_sampler(made.eval_dataset)
    kinds = (RandomSampler, SequentialSampler)
    return [[isinstance(each, kind) for kind in kinds] + [len(list(each))] for each in (training, evaluation)]


def saved_state(library: ModuleType, folder: Path) -> Any:
    callback = library.EarlyStoppingCallback(3)
    given: Any = {**EPOCHS, "load_best_model_at_end": True, "metric_for_best_model": "loss"}
    trained(library, folder, parts={"callbacks": [callback]}, **given)
    found = json.loads((folder / "checkpoint-5" / "trainer_state.json").read_text())
    return {**found, "total_flos": 0, "log_history": len(found["log_history"])}


def states_in_callbacks(library: ModuleType, folder: Path) -> Any:
    seen: list[Any] = []

    class Watching(library.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            seen.append([_fields(state), sorted(named)])

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            seen.append([state.global_step, state.epoch, control])

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            seen.append([list(logs), state.log_history[-1]["step"], control.should_log])

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **named: Any) -> None:
            seen.append([sorted(metrics), len(state.log_history)])

        def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            seen.append([state.global_step, state.epoch, len(state.log_history), control, sorted(named)])

    trained(library, folder, parts={"callbacks": [Watching()]}, num_train_epochs=2, eval_strategy="epoch")
    return [[each for each in entry if each != "total_flos"] for entry in seen]


def result(library: ModuleType, folder: Path) -> Any:
    made = trained(library, folder, disable_tqdm=False)
    found = made.result
    return type(found).__name__, found._fields, list(found.metrics), found.global_step, found.training_loss


def modes_at_logs(library: ModuleType, folder: Path) -> Any:
    """Whether the model is in training mode when a log is written, by which trl tells the kinds of metrics apart."""
    seen = []

    class Logging(library.Trainer):  # type: ignore[misc, name-defined]
        def log(self, logs: Any, start_time: Any = None) -> None:
            seen.append(["eval_loss" in logs, self.model.training])
            super().log(logs, start_time)

    trained(library, folder, Logging, eval_strategy="steps", eval_steps=2, logging_steps=1)
    return seen


def evaluations(library: ModuleType, folder: Path) -> Any:
    made = trainer(library, folder, parts={"compute_metrics": lambda prediction: {"score": 1.0, "my_score": 2.0}})
    several = trainer(library, folder, parts={"eval_dataset": {"one": samples(5), "two": samples(6)}})
    return [
        list(made.evaluate()), list(made.evaluate(metric_key_prefix="my")), made.state.log_history[0]["step"],
        list(made.evaluate(samples(3))), list(several.evaluate()), list(several.evaluate(metric_key_prefix="x")),
        [len(several.get_eval_dataloader(name).dataset) for name in ("one", "two")],
    ]  # fmt: skip


def predictions(library: ModuleType, folder: Path) -> Any:
    made = trainer(library, folder)
    labelled, unlabelled = made.predict(samples(7)), made.predict([{"x": each["x"]} for each in samples(5)])
    looped = made.evaluation_loop(made.get_eval_dataloader(), "Evaluation")
    apart = trainer(library, folder, eval_do_concat_batches=False).predict(samples(7))
    accumulated = trainer(library, folder, eval_accumulation_steps=1).predict(samples(7))
    return [
        type(labelled).__name__, labelled._fields, labelled, unlabelled, type(looped).__name__, looped._fields, looped,
        apart, accumulated, list(made.predict(samples(3), metric_key_prefix="x").metrics or ()),
        len(made.state.log_history),
    ]  # fmt: skip


def for_metrics(library: ModuleType, folder: Path) -> Any:
    seen: list[Any] = []

    def compute(prediction: Any) -> dict[str, float]:
        parts = [prediction.predictions, prediction.label_ids, prediction.inputs, prediction.losses]
        seen.append([type(prediction).__name__, len(list(prediction)), parts])
        return {}

    trainer(library, folder, parts={"compute_metrics": compute}).evaluate()
    both = ["inputs", "loss"]
    trainer(library, folder, parts={"compute_metrics": compute}, include_for_metrics=both).evaluate()
    return seen


def sizes(library: ModuleType, folder: Path) -> Any:
    made = trainer(library, folder, gradient_accumulation_steps=2)
    loader = made.get_train_dataloader()
    return [
        made.num_examples(loader), made.num_examples(made.get_eval_dataloader()), len(loader), loader.batch_size,
        loader.total_batch_size, loader.total_dataset_length, isinstance(loader, DataLoader),
        made.set_initial_training_values(made.args, loader), made.get_total_train_batch_size(made.args),
        made.get_decay_parameter_names(made.model), [len(each["labels"]) for each in loader],
    ]  # fmt: skip


def attributes(library: ModuleType, folder: Path) -> Any:
    """Of a Trainer before, during and after a run; those by which libraries ask for an engine among them."""
    made = trainer(library, folder)
    listed = (
        "_train_batch_size", "_created_lr_scheduler", "_signature_columns", "current_flos", "hp_search_backend",
        "hp_name", "deepspeed", "is_deepspeed_enabled", "is_fsdp_enabled", "hub_model_id", "neftune_noise_alpha",
        "is_model_parallel", "place_model_on_device", "model_accepts_loss_kwargs", "loss_is_scaled_for_ga",
        "label_smoother", "is_in_train", "label_names", "can_return_loss",
    )  # fmt: skip
    before = [getattr(made, name) for name in listed]
    state = made.args.distributed_state
    engines = [
        made.args.deepspeed_plugin, made.accelerator.parallelism_config, made.accelerator.state.deepspeed_plugin,
        state.num_processes, state.is_main_process, state.process_index, str(state.device),
    ]  # fmt: skip
    made.train()
    later = ("_globalstep_last_logged", "_total_loss_scalar", "_created_lr_scheduler", "is_in_train", "current_flos")
    handler = made.callback_handler
    held = [handler.optimizer is made.optimizer, handler.lr_scheduler is made.lr_scheduler, handler.model is made.model]
    return before, engines, [getattr(made, name) for name in later], held, type(made.lr_scheduler).__name__


def folder_of_a_trainer(library: ModuleType, folder: Path) -> Any:
    """Scripts write into it before the run."""
    made = trainer(library, folder / "new" / "folder")
    return (folder / "new" / "folder").is_dir(), type(made.args).__name__


def step_alone(library: ModuleType, folder: Path) -> Any:
    """A step outside a run, as tests of a trainer's loss make it."""
    made = trainer(library, folder)
    made.create_optimizer()
    made.current_gradient_accumulation_steps = 2
    batch = {"x": torch.ones(2, 4), "labels": torch.zeros(2).long()}
    loss = made.training_step(made.model, batch)
    prediction = made.prediction_step(made.model, batch, False)
    return float(loss), float(made.model.first.weight.grad.sum()), prediction, made.compute_loss(made.model, batch)


def fitting(message: str) -> Observation:
    def observe(library: ModuleType, folder: Path) -> Any:
        model = Failing()
        model.message = message
        made = trained(library, folder, parts={"model": model}, auto_find_batch_size=True)
        return made.state.train_batch_size <= 2, made._train_batch_size <= 2

    return observe


def settings(library: ModuleType, folder: Path) -> Any:
    """What arguments hold after setters, as dictionaries and as text; hexloop's own aside."""
    made = arguments(library, folder, lr_scheduler_type="cosine", warmup_steps=0.1, hub_token="secret")
    made.set_training(1e-3, 8, 0.1, 3, 5, 2, 7, False)
    made.set_evaluate("steps", 5, 3, 2, 1.5, True)
    made.set_save("steps", 7, 3, True)
    made.set_logging("steps", 3, [], "info", True, True, True, "error")
    made.set_optimizer("sgd", 1e-2, 0.1, 0.8, 0.9, 1e-6, None)
    made.set_lr_scheduler("linear", 4, 50, 3)
    made.set_dataloader(train_batch_size=3, eval_batch_size=5, drop_last=True, sampler_seed=3)
    theirs = {each.name for each in _declared(library)}
    shown = [made.to_dict(), json.loads(made.to_json_string()), made.to_sanitized_dict()]
    levels = [arguments(library, folder, log_level=level).get_process_log_level() for level in ("debug", "error")]
    steps = [made.get_warmup_steps(95), made.train_batch_size, made.eval_batch_size, made.world_size, made.n_gpu]
    kinds = [type(getattr(made, name)).__name__ for name in ("lr_scheduler_type", "eval_strategy", "optim", "debug")]
    text = [str(made).startswith("TrainingArguments("), "learning_rate=0.01" in str(made), "secret" in str(made)]
    return [{key: each[key] for key in sorted(each.keys() & theirs)} for each in shown], levels, steps, kinds, text


def _declared(library: ModuleType) -> Any:
    import dataclasses

    import transformers

    return dataclasses.fields(transformers.TrainingArguments)


OBSERVATIONS: dict[str, Observation] = {
    "logs": logs(logging_steps=1, warmup_steps=2),
    "logs by epoch": logs(logging_strategy="epoch", num_train_epochs=2),
    "first log": names_of_logs(logging_first_step=True, logging_steps=3, num_train_epochs=2),
    "no logs": names_of_logs(logging_strategy="no"),
    "logs of tokens": names_of_logs(include_num_input_tokens_seen="all"),
    "logs and evaluations": logs(eval_strategy="steps", eval_steps=2, num_train_epochs=2, label_names=["labels"]),
    "later evaluations": names_of_logs(eval_strategy="steps", eval_steps=1, eval_delay=3, num_train_epochs=2),
    "later evaluations by epoch": names_of_logs(eval_strategy="epoch", eval_delay=2, num_train_epochs=3),
    "evaluation on start": names_of_logs(eval_strategy="epoch", eval_on_start=True, num_train_epochs=2),
    "ratios": names_of_logs(logging_steps=0.3, eval_strategy="steps", eval_steps=0.5),
    "accumulation": logs(gradient_accumulation_steps=2, num_train_epochs=2),
    "no clipping": names_of_logs(max_grad_norm=0),
    "part of an epoch": names_of_logs(num_train_epochs=1.5),
    "losses that are not finite": lambda library, folder: [
        each.get("loss")
        for each in trained(
            library, folder, parts={"model": NotFinite()}, logging_nan_inf_filter=False
        ).state.log_history
    ],
    "stream": lambda library, folder: trained(
        library, folder, parts={"train_dataset": Stream()}, max_steps=7
    ).state.epoch,
    "state": state_of(num_train_epochs=2),
    "state of saves": state_of(**EPOCHS, num_train_epochs=2),
    "best": state_of(0.1, 0.9, 0.5, **EPOCHS, num_train_epochs=3, metric_for_best_model="accuracy"),
    "best at the end": state_of(
        0.1, 0.9, 0.5, **EPOCHS, num_train_epochs=3, metric_for_best_model="accuracy", load_best_model_at_end=True,
        save_total_limit=2,
    ),
    "saves of the best": state_of(
        0.1, 0.5, 0.3, 0.7, num_train_epochs=4, eval_strategy="epoch", save_strategy="best",
        metric_for_best_model="accuracy",
    ),
    "saved state": saved_state,
    "states in callbacks": states_in_callbacks,
    "result": result,
    "modes at logs": modes_at_logs,
    "evaluations": evaluations,
    "predictions": predictions,
    "for metrics": for_metrics,
    "sizes": sizes,
    "attributes": attributes,
    "folder": folder_of_a_trainer,
    "step alone": step_alone,
    "arguments": settings,
    "random sampler": lambda library, folder: sampler_of(library, folder, "random"),
    "sequential sampler": lambda library, folder: sampler_of(library, folder, "sequential"),
    "bound model_init": lambda library, folder: trained(
        library, folder, parts={"model_init": Making().model}
    ).state.global_step,
}  # fmt: skip


class Making:
    def model(self) -> Any:
        return Classifier()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_both_libraries_show_the_same(name: str, tmp_path: Path) -> None:
    """Names, order, types, steps, epochs, and in sequential order all numbers."""
    assert_same(OBSERVATIONS[name], tmp_path)


MESSAGES = [
    "CUDA out of memory. Tried to allocate 2 GiB", "XPU out of memory.", "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
]  # fmt: skip


@pytest.mark.parametrize(
    "message", [MESSAGES[0], *(pytest.param(each, marks=pytest.mark.matrix) for each in MESSAGES[1:])]
)
def test_errors_count_as_out_of_memory(message: str, tmp_path: Path) -> None:
    """On any device, also on the CPU, by the messages that accelerate knows."""
    assert assert_same(fitting(message), tmp_path) == [True, True]


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_evaluation_without_memory_ends_the_search(evaluates: bool, tmp_path: Path) -> None:
    """A smaller batch in training would not help; a batch of one sample is the last that is tried."""
    model = Failing()
    model.message, model.evaluates, model.room = MESSAGES[0], evaluates, 0 if evaluates else 9
    given: Any = {"auto_find_batch_size": True, "eval_strategy": "epoch"}

    with pytest.raises(RuntimeError):
        trained(hexloop, tmp_path, parts={"model": model}, **given)
    assert model.training == evaluates


@pytest.mark.parametrize("parallel", [(True, True), (True, False), (False, True)])
def test_a_model_says_whether_it_is_parallel(parallel: tuple[bool, bool], tmp_path: Path) -> None:
    """By the two attributes of models that split themselves over devices."""
    model = Classifier()
    model.is_parallelizable, model.model_parallel = parallel  # type: ignore[assignment]

    assert trainer(hexloop, tmp_path, parts={"model": model}).is_model_parallel == all(parallel)


def test_workers_of_training_stay_with_an_iterable_evaluation(tmp_path: Path) -> None:
    """Whatever the evaluation reads, training reads with its workers."""
    made = trainer(hexloop, tmp_path, parts={"eval_dataset": Stream()}, dataloader_num_workers=2)

    assert made.get_train_dataloader().num_workers == 2
    assert made.evaluate()["eval_loss"] > 0
    assert made.get_train_dataloader().num_workers == 2
