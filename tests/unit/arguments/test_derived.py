"""Values derived from the arguments and the environment."""

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
from hexloop.app.environment import DistributedEnvironment


def test_batch_size_is_multiplied_by_the_gpus() -> None:
    """The batch size of a process is that of a device times its number of GPUs."""
    arguments = TrainingArguments("out", per_device_train_batch_size=4, per_device_eval_batch_size=6)
    arguments.distributed_environment = DistributedEnvironment(device="cuda:0", n_gpu=2)
    assert (arguments.train_batch_size, arguments.eval_batch_size, arguments.n_gpu) == (8, 12, 2)
    assert arguments.parallel_mode is ParallelMode.NOT_DISTRIBUTED
    arguments.use_cpu = True
    assert (arguments.train_batch_size, arguments.eval_batch_size, arguments.n_gpu) == (4, 6, 0)


def test_device_is_the_cpu_named_or_detected() -> None:
    """The device is the CPU with `use_cpu`, the one given by the environment, or the one torch finds."""
    assert TrainingArguments("out", use_cpu=True).device == torch.device("cpu")
    arguments = TrainingArguments("out")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert found is not None
    assert arguments.device.type == found.type
    assert arguments.n_gpu == (0 if found.type == "cpu" else 1)
    arguments.distributed_environment = DistributedEnvironment(device="meta")
    assert arguments.device == torch.device("meta")


@pytest.mark.parametrize(
    ("module", "device"), [(torch.cuda, "cuda:0"), (torch.backends.mps, "mps"), (torch.xpu, "xpu:0")]
)
def test_any_kind_of_gpu_is_detected(monkeypatch: pytest.MonkeyPatch, module: Any, device: str) -> None:
    """If torch has a GPU of any kind, the first one is the device."""
    for make in (torch.cuda, torch.backends.mps, torch.xpu):
        monkeypatch.setattr(make, "is_available", lambda make=make: make is module)
    arguments = TrainingArguments("out")
    assert arguments.device == torch.device(device)
    assert arguments.n_gpu == 1


def test_a_single_process_logs_and_saves() -> None:
    """Without a distributed environment the process is the only one."""
    arguments = TrainingArguments("out", use_cpu=True)
    assert (arguments.world_size, arguments.process_index, arguments.local_process_index) == (1, 0, 0)
    assert arguments.should_log
    assert arguments.should_save
    assert arguments.parallel_mode is ParallelMode.NOT_PARALLEL
    assert arguments.place_model_on_device is None


@pytest.mark.parametrize("each_node", [True, False])
def test_local_rank_0_or_rank_0_logs_and_saves(each_node: bool) -> None:
    """The first process of the second machine logs and saves only if each machine does."""
    arguments = TrainingArguments("out", log_on_each_node=each_node, save_on_each_node=each_node, log_level="info")
    arguments.distributed_environment = DistributedEnvironment(world_size=4, process_index=2, local_process_index=0)
    assert arguments.should_log is arguments.should_save is each_node
    assert arguments.get_process_log_level() == (logging.INFO if each_node else logging.WARNING)
    assert arguments.parallel_mode is ParallelMode.DISTRIBUTED


def test_passive_level_equals_hexloops_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Level `passive` is the level of hexloop's logger, and decides about the progress bar."""
    arguments = TrainingArguments("out")
    monkeypatch.setattr(logging.getLogger("hexloop"), "level", logging.ERROR)
    logging.getLogger("hexloop").manager._clear_cache()  # type: ignore[attr-defined]
    assert arguments.get_process_log_level() == logging.ERROR
    assert arguments.disable_tqdm is False
    assert TrainingArguments("out").disable_tqdm is True


@pytest.mark.parametrize("local", [True, False])
def test_main_process_first_order(local: bool) -> None:
    """The first process meets the barrier after its block, the others before theirs, even on errors."""
    done: list[str] = []
    arguments = TrainingArguments("out")
    for index, order in ((0, ["block", "barrier"]), (1, ["barrier", "block"])):
        arguments.distributed_environment = DistributedEnvironment(
            2, index, index, barrier=lambda: done.append("barrier")
        )
        done.clear()
        with contextlib.suppress(KeyError), arguments.main_process_first(local=local, desc="test"):
            done.append("block")
            raise KeyError
        assert done == order
    with TrainingArguments("out").main_process_first(local=local):
        done.append("alone")
    assert done[-1] == "alone"


@given(warmup=st.integers(0, 500) | st.floats(0, 1, exclude_max=True), total=st.integers(0, 10**6))
def test_warmup_steps_equal_transformers(warmup: float, total: int) -> None:
    """Warm-up is a number of steps, or a ratio of the run rounded up, as in transformers."""
    reference = ReferenceArguments.get_warmup_steps(Warmup(warmup), total)  # type: ignore[arg-type]
    assert TrainingArguments("out", warmup_steps=warmup).get_warmup_steps(total) == reference


@dataclass
class Warmup:
    warmup_steps: float


def test_dictionaries_equal_transformers() -> None:
    """`to_dict`, `to_json_string` and `to_sanitized_dict` equal transformers', plus hexloop's own arguments."""
    given: dict[str, Any] = {"report_to": ["tensorboard"], "lr_scheduler_kwargs": {"num_cycles": 2}, "use_cpu": True}
    ours = TrainingArguments("out", **given)
    theirs: Any = ReferenceArguments("out", **given)
    own = {"loss_weighting", "keyed_data_randomness", "save_async", "save_when_busy", "resume_despite"}
    own |= {"rendezvous_timeout", "checkpoint_key", "outbox_grace", "logger_grace", "board_control"}
    own |= {"reproduce", "predictions_folder", "journal", "interrupts", "stop_file", "stop_after", "stop_margin"}
    own |= {"on_nonfinite", "on_spike", "spike_factor", "nonfinite_limit", "dataloader_timeout"}
    own |= {"capture_step", "compile_buckets", "save_full_model"}
    own |= {"log_goodput", "peak_flops", "profile", "system_metrics", "media_limit"}
    own |= {"fp8"}
    own |= {"optim_layerwise", "chunked_loss", "loss_type", "log_token_accuracy"}
    own |= {"packing", "packing_strategy", "max_length", "padding_free", "tokens_per_batch", "eval_packing"}
    own |= {"pad_to_multiple_of"}
    own |= {"optim_layerwise", "param_groups", "ema_decay", "ema_start_step", "ema_update_every", "ema_weights"}
    assert {name for group in HexloopArguments.__mro__ for name in vars(group).get(GROUP, ())} == own
    for mine, reference in (
        (ours.to_dict(), theirs.to_dict()),
        (json.loads(ours.to_json_string()), json.loads(theirs.to_json_string())),
        (ours.to_sanitized_dict(), theirs.to_sanitized_dict()),
    ):
        assert own <= mine.keys()
        assert [str(mine.pop(name)) for name in DISCOURAGED_ARGUMENTS] == ["None", "False", "False", "-1"]
        assert {name: value for name, value in mine.items() if name not in own} == {
            name: reference[name] for name in mine.keys() - own
        }


@dataclass
class WithObjects(TrainingArguments):
    data_dir: Path = Path("data")
    dtype: torch.dtype = torch.float32
    model_init_kwargs: dict[str, Any] = field(default_factory=lambda: {"dtype": torch.bfloat16})


def test_values_without_a_json_form_become_strings() -> None:
    """Fields of a subclass, such as paths or dtypes, are written as strings."""
    arguments = WithObjects("out")
    written = json.loads(arguments.to_json_string())

    assert (written["data_dir"], written["dtype"]) == ("data", "float32")
    assert written["model_init_kwargs"] == {"dtype": "bfloat16"}
    assert arguments.to_dict()["data_dir"] == Path("data")


@dataclass
class WithToken(TrainingArguments):
    hub_token: str = "secret"


def test_tokens_are_hidden() -> None:
    """Values of fields whose name contains "token" appear in no dictionary or repr."""
    arguments = WithToken("out")
    assert arguments.to_dict()["hub_token"] == "<HUB_TOKEN>"
    assert "secret" not in arguments.to_json_string()
    assert "secret" not in TrainingArguments.__repr__(arguments)


def test_str_shows_every_argument() -> None:
    """The printed form has one line for each argument and its value."""
    printed = str(TrainingArguments("out", eval_strategy="epoch"))
    assert "\n    output_dir='out',\n" in printed
    assert "\n    eval_strategy='epoch',\n" in printed
    assert len(printed.splitlines()) == len(TrainingArguments.__dataclass_fields__) + 2


def test_timeout_is_a_timedelta() -> None:
    """`ddp_timeout_delta` is the number of seconds as a timedelta."""
    assert TrainingArguments("out", ddp_timeout=90).ddp_timeout_delta == timedelta(minutes=1, seconds=30)


@pytest.mark.parametrize(("given", "format_"), [({"bf16": True}, "bf16"), ({"fp16": True}, "fp16"), ({}, "no")])
def test_mixed_precision_name(given: dict[str, bool], format_: str) -> None:
    """`mixed_precision` has the same names as in transformers."""
    assert TrainingArguments("out", **given).mixed_precision == format_  # type: ignore[arg-type]
