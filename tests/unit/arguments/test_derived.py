"""Values that follow from the arguments and the surroundings."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainingArguments as ReferenceArguments

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.choices import ParallelMode
from hexloop.app.arguments.declaration import GROUP
from hexloop.app.arguments.hexloop_only import HexloopArguments
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS
from hexloop.app.environment import Surroundings


def test_batch_sizes_count_the_gpus() -> None:
    """A batch of the process is a batch of each device, times the GPUs that the process trains on."""
    arguments = TrainingArguments("out", per_device_train_batch_size=4, per_device_eval_batch_size=6)
    arguments.surroundings = Surroundings(device="cuda:0", n_gpu=2)
    assert (arguments.train_batch_size, arguments.eval_batch_size, arguments.n_gpu) == (8, 12, 2)
    assert arguments.parallel_mode is ParallelMode.NOT_DISTRIBUTED
    arguments.use_cpu = True
    assert (arguments.train_batch_size, arguments.eval_batch_size, arguments.n_gpu) == (4, 6, 0)


def test_the_device_is_found_named_or_the_processor() -> None:
    """The device is the processor with `use_cpu`, the one that the surroundings name, or the one that torch finds."""
    assert TrainingArguments("out", use_cpu=True).device == torch.device("cpu")
    arguments = TrainingArguments("out")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert found is not None
    assert arguments.device.type == found.type
    assert arguments.n_gpu == (0 if found.type == "cpu" else 1)
    arguments.surroundings = Surroundings(device="meta")
    assert arguments.device == torch.device("meta")


@pytest.mark.parametrize(
    ("module", "device"), [(torch.cuda, "cuda:0"), (torch.backends.mps, "mps"), (torch.xpu, "xpu:0")]
)
def test_a_gpu_of_any_make_is_found(monkeypatch: pytest.MonkeyPatch, module: Any, device: str) -> None:
    """Where torch has a GPU, the first one is the device, and the process trains on that one."""
    for make in (torch.cuda, torch.backends.mps, torch.xpu):
        monkeypatch.setattr(make, "is_available", lambda make=make: make is module)
    arguments = TrainingArguments("out")
    assert arguments.device == torch.device(device)
    assert arguments.n_gpu == 1


def test_a_single_process_logs_and_saves() -> None:
    """Without surroundings of its own the process is the only one."""
    arguments = TrainingArguments("out", use_cpu=True)
    assert (arguments.world_size, arguments.process_index, arguments.local_process_index) == (1, 0, 0)
    assert arguments.should_log
    assert arguments.should_save
    assert arguments.parallel_mode is ParallelMode.NOT_PARALLEL
    assert arguments.place_model_on_device is None


@pytest.mark.parametrize("each_node", [True, False])
def test_one_process_a_machine_or_one_in_all_logs_and_saves(each_node: bool) -> None:
    """The first process of the second machine logs and saves only where each machine is to."""
    arguments = TrainingArguments("out", log_on_each_node=each_node, save_on_each_node=each_node, log_level="info")
    arguments.surroundings = Surroundings(world_size=4, process_index=2, local_process_index=0)
    assert arguments.should_log is arguments.should_save is each_node
    assert arguments.get_process_log_level() == (logging.INFO if each_node else logging.WARNING)
    assert arguments.parallel_mode is ParallelMode.DISTRIBUTED


def test_a_passive_level_is_that_of_the_library_s_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """With level `passive` the level is the one that the application gave hexloop's logger, and the bar follows it."""
    arguments = TrainingArguments("out")
    monkeypatch.setattr(logging.getLogger("hexloop"), "level", logging.ERROR)
    logging.getLogger("hexloop").manager._clear_cache()  # type: ignore[attr-defined]
    assert arguments.get_process_log_level() == logging.ERROR
    assert arguments.disable_tqdm is False
    assert TrainingArguments("out").disable_tqdm is True


@pytest.mark.parametrize("local", [True, False])
def test_the_main_process_goes_first(local: bool) -> None:
    """The first process meets the barrier after its block, the others before theirs, even when the block fails."""
    done: list[str] = []
    arguments = TrainingArguments("out")
    for index, order in ((0, ["block", "barrier"]), (1, ["barrier", "block"])):
        arguments.surroundings = Surroundings(2, index, index, barrier=lambda: done.append("barrier"))
        done.clear()
        with contextlib.suppress(KeyError), arguments.main_process_first(local=local, desc="test"):
            done.append("block")
            raise KeyError
        assert done == order
    with TrainingArguments("out").main_process_first(local=local):
        done.append("alone")
    assert done[-1] == "alone"


@given(warmup=st.integers(0, 500) | st.floats(0, 1, exclude_max=True), total=st.integers(0, 10**6))
def test_warmup_steps_are_the_reference_s(warmup: float, total: int) -> None:
    """Warm-up is a number of steps, or a ratio of the run rounded up, as in the reference library."""
    reference = ReferenceArguments.get_warmup_steps(Warmup(warmup), total)  # type: ignore[arg-type]
    assert TrainingArguments("out", warmup_steps=warmup).get_warmup_steps(total) == reference


@dataclass
class Warmup:
    warmup_steps: float


def test_dictionaries_are_the_reference_s() -> None:
    """`to_dict`, `to_json_string` and `to_sanitized_dict` give what the reference library's give, and hexloop's own."""
    given: dict[str, Any] = {"report_to": ["tensorboard"], "lr_scheduler_kwargs": {"num_cycles": 2}, "use_cpu": True}
    ours = TrainingArguments("out", **given)
    theirs: Any = ReferenceArguments("out", **given)
    own = {"loss_weighting", "keyed_data_randomness", "save_async", "save_when_busy", "resume_despite"}
    own |= {"predictions_folder", "journal", "interrupts", "stop_file", "stop_after", "stop_margin"}
    assert {name for group in HexloopArguments.__mro__ for name in vars(group).get(GROUP, ())} == own
    for mine, reference in (
        (ours.to_dict(), theirs.to_dict()),
        (json.loads(ours.to_json_string()), json.loads(theirs.to_json_string())),
        (ours.to_sanitized_dict(), theirs.to_sanitized_dict()),
    ):
        assert own <= mine.keys()
        assert [str(mine.pop(name)) for name in DISCOURAGED_ARGUMENTS] == ["None", "False", "-1"]
        assert {name: value for name, value in mine.items() if name not in own} == {
            name: reference[name] for name in mine.keys() - own
        }


@dataclass
class WithObjects(TrainingArguments):
    data_dir: Path = Path("data")
    dtype: torch.dtype = torch.float32
    model_init_kwargs: dict[str, Any] = field(default_factory=lambda: {"dtype": torch.bfloat16})


def test_what_json_has_no_form_for_is_text() -> None:
    """Fields of a script's own may be paths or dtypes: the arguments can be written out all the same."""
    arguments = WithObjects("out")
    written = json.loads(arguments.to_json_string())

    assert (written["data_dir"], written["dtype"]) == ("data", "float32")
    assert written["model_init_kwargs"] == {"dtype": "bfloat16"}
    assert arguments.to_dict()["data_dir"] == Path("data")


@dataclass
class WithToken(TrainingArguments):
    hub_token: str = "secret"


def test_tokens_are_shown_nowhere() -> None:
    """The value of a field that is called a token is in no dictionary and no printed form."""
    arguments = WithToken("out")
    assert arguments.to_dict()["hub_token"] == "<HUB_TOKEN>"
    assert "secret" not in arguments.to_json_string()
    assert "secret" not in TrainingArguments.__repr__(arguments)


def test_the_printed_form_shows_every_argument() -> None:
    """Printing shows each argument and its value on a line of its own."""
    printed = str(TrainingArguments("out", eval_strategy="epoch"))
    assert "\n    output_dir='out',\n" in printed
    assert "\n    eval_strategy='epoch',\n" in printed
    assert len(printed.splitlines()) == len(TrainingArguments.__dataclass_fields__) + 2


def test_the_timeout_is_a_span_of_time() -> None:
    """`ddp_timeout_delta` is the number of seconds as torch takes it."""
    assert TrainingArguments("out", ddp_timeout=90).ddp_timeout_delta == timedelta(minutes=1, seconds=30)


@pytest.mark.parametrize(("given", "format_"), [({"bf16": True}, "bf16"), ({"fp16": True}, "fp16"), ({}, "no")])
def test_mixed_precision_is_named(given: dict[str, bool], format_: str) -> None:
    """`mixed_precision` names the format of training as the reference library does."""
    assert TrainingArguments("out", **given).mixed_precision == format_  # type: ignore[arg-type]
