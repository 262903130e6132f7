"""TrainingArguments of transformers are converted to hexloop's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from transformers import Seq2SeqTrainingArguments as ReferenceSeq2SeqArguments
from transformers import TrainingArguments as ReferenceArguments
from transformers.trainer_utils import FSDPOption

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.arguments import from_transformers
from hexloop.domain.errors import ConfigurationError

GIVEN: list[dict[str, Any]] = [
    {},
    {"learning_rate": 1e-3, "optim": "sgd", "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2}},
    {"eval_strategy": "steps", "logging_steps": 50, "save_strategy": "steps", "load_best_model_at_end": True},
    {"debug": "underflow_overflow", "report_to": "tensorboard", "include_num_input_tokens_seen": True},
    {"hub_model_id": "me/model", "hub_token": "secret", "hub_strategy": "checkpoint"},
    {"torch_compile": True, "activation_checkpointing": True, "accelerator_config": {"even_batches": False}},
    {"fsdp": True},
    {"warmup_steps": 0.1, "save_steps": 0.25, "max_steps": 20, "neftune_noise_alpha": 5},
]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_converted_arguments_are_equal(given: dict[str, Any], tmp_path: Path) -> None:
    """Converted arguments equal those that hexloop builds from the same keywords."""
    theirs = ReferenceArguments(str(tmp_path), use_cpu=True, **given)
    made = from_transformers(theirs, TrainingArguments)
    assert type(made) is TrainingArguments
    assert made == TrainingArguments(str(tmp_path), use_cpu=True, **given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("full shard", "full_shard"),
        ("shard grad op auto wrap", "shard_grad_op auto_wrap"),
        ("hybrid-shard offload", "hybrid_shard offload"),
    ],
)
def test_options_of_fsdp_may_be_two_words(tmp_path: Path, given: str, meant: str) -> None:
    """As documentation of PyTorch writes them."""
    assert TrainingArguments(str(tmp_path), fsdp=given).fsdp == meant


def test_options_of_fsdp_may_be_members_of_transformers(tmp_path: Path) -> None:
    """Releases of transformers before 5.10 make a list of members of `fsdp`."""
    given = [FSDPOption.FULL_SHARD, FSDPOption.AUTO_WRAP]
    assert TrainingArguments(str(tmp_path), fsdp=given).fsdp == "full_shard auto_wrap"  # type: ignore[arg-type]


def test_arguments_of_hexloop_are_not_converted() -> None:
    """Arguments of hexloop and of its subclasses stay the same objects."""
    arguments = TrainingArguments("out")
    assert from_transformers(arguments, TrainingArguments) is arguments


@dataclasses.dataclass
class Extended(ReferenceArguments):
    beta: float = 0.1

    def get_warmup_steps(self, num_training_steps: int) -> int:
        return 1


def test_unknown_fields_and_methods_are_rejected_by_name() -> None:
    """Additional fields and methods of a subclass are rejected together with bad values."""
    theirs = Extended("out", use_cpu=True, beta=0.2, save_total_limit=0)  # type: ignore[call-arg, unused-ignore]
    with pytest.raises(ConfigurationError) as caught:
        from_transformers(theirs, TrainingArguments)
    beta, method, limit = caught.value.problems
    assert beta.startswith("You chose beta=0.2, but there is no argument of that name")
    assert "Extended, which overrides get_warmup_steps" in method
    assert beta.endswith("derive Extended from hexloop.TrainingArguments.")
    assert limit.startswith("You chose save_total_limit=0")


def test_arguments_for_generation_name_the_class_to_use() -> None:
    """Generation arguments given to a plain Trainer raise an error that names Seq2SeqTrainer."""
    generating = ReferenceSeq2SeqArguments("out", use_cpu=True, predict_with_generate=True)
    with pytest.raises(ConfigurationError, match="use Seq2SeqTrainingArguments"):
        from_transformers(generating, TrainingArguments)
    assert from_transformers(ReferenceSeq2SeqArguments("out", use_cpu=True), TrainingArguments).output_dir == "out"


@pytest.mark.parametrize("args", [3, "out", {"output_dir": "out"}, TrainingArguments])
def test_other_objects_are_rejected(args: Any) -> None:
    """Any other object is rejected with one sentence."""
    with pytest.raises(ConfigurationError, match="a Trainer takes TrainingArguments"):
        from_transformers(args, TrainingArguments)
