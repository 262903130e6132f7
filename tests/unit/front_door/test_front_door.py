"""The names that `hexloop` exports."""

from __future__ import annotations

import inspect
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from transformers import trainer_utils, training_args

import hexloop
from hexloop import testing
from hexloop.domain import errors, events

FACTS = (Path(__file__).parents[2] / "reference" / "api.md").read_text(encoding="utf-8")

OF_THAT_LIBRARY = "a collator that is usable from transformers as it is"
LATER = "an issue of its own"

NOT_EXPORTED: Mapping[str, str] = {
    "Seq2SeqTrainer": "exported with sequence-to-sequence training",
    "Seq2SeqTrainingArguments": "exported with sequence-to-sequence training",
    **dict.fromkeys(
        (
            "DataCollatorMixin",
            "pad_without_fast_tokenizer_warning",
            "torch_default_data_collator",
            "numpy_default_data_collator",
            "DataCollatorForTokenClassification",
            "DataCollatorForMultipleChoice",
            "DataCollatorForSeq2Seq",
            "DataCollatorForLanguageModeling",
            "to_numpy",
            "DataCollatorForPermutationLanguageModeling",
            "DataCollatorWithFlattening",
        ),
        OF_THAT_LIBRARY,
    ),
    **dict.fromkeys(
        re.findall(r"\b(?!Trainer)\w+Callback\b", FACTS.split("logger integrations")[1].split("\n")[0]), LATER
    ),
}
"""Names of transformers' interface that `hexloop` does not export, and why."""

FURTHER = (
    "set_seed",
    "enable_full_determinism",
    "EvalPrediction",
    "EvalLoopOutput",
    "PredictionOutput",
    "TrainOutput",
    "get_last_checkpoint",
    "ParallelMode",
)


def names_of_transformers() -> set[str]:
    """Return the classes, values, factories and collators in the list of transformers' interface."""
    headings = set(re.findall(r"^## (\w+)$", FACTS, re.MULTILINE)) - {"Values"}
    values = set(re.findall(r"^- (\w+?)(?: adds)?: ", FACTS, re.MULTILINE))
    factories = set(re.findall(r"\b(get_\w+(?:schedule\w*|scheduler))\(", FACTS))
    collators = set(re.findall(r"\w+", FACTS.split("that pads with a tokenizer): ")[1].split("\n")[0]))
    loggers = set(re.findall(r"\w+Callback\b", FACTS.split("logger integrations")[1].split("\n")[0]))
    return headings | values | factories | collators | loggers | set(FURTHER)


def test_every_public_name_of_transformers_is_exported() -> None:
    """Each can be imported from hexloop, or is listed with the reason why not; none is both."""
    names = names_of_transformers()
    assert len(names) > 50
    missing = {name for name in names if not hasattr(hexloop, name)}
    assert missing == {name for name in NOT_EXPORTED if not hasattr(hexloop, name)}


def test_errors_and_events_are_exported() -> None:
    """Every error and every event of the domain is exported, and is the domain's own class."""
    for module in (errors, events):
        own = {
            name: each
            for name, each in inspect.getmembers(module, inspect.isclass)
            if each.__module__ == module.__name__
        }
        assert len(own) >= 10
        assert {name: getattr(hexloop, name) for name in own} == own
    assert hexloop.AnyEvent == events.AnyEvent


def test_every_listed_name_can_be_imported() -> None:
    """Every name of both stubs is importable, and importing from the test kit adds nothing to hexloop itself."""
    assert len(hexloop.__all__) > 80
    assert all(getattr(hexloop, name) is not None for name in hexloop.__all__)
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    assert not hasattr(hexloop, "MemoryStorage")
    with pytest.raises(AttributeError, match="Foo"):
        _ = hexloop.Foo  # type: ignore[attr-defined]


def test_importing_hexloop_is_fast() -> None:
    """Neither the package nor its plain values load torch, numpy or transformers."""
    program = (
        "import hexloop, sys\n"
        "hexloop.IntervalStrategy, hexloop.ConfigurationError, hexloop.StepEnded, hexloop.HfArgumentParser\n"
        "hexloop.TrainingArguments, hexloop.get_last_checkpoint\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "accelerate", "transformers"} & set(done.stdout.split())


ENUMERATIONS = (
    "FSDPOption",
    "HPSearchBackend",
    "IntervalStrategy",
    "SaveStrategy",
    "HubStrategy",
    "SchedulerType",
    "OptimizerNames",
    "DebugOption",
    "ParallelMode",
)


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_match_transformers(name: str) -> None:
    """The members have transformers' names and values; `best` is one more strategy for the Hub."""
    ours, theirs = getattr(hexloop, name), getattr(training_args, name, None) or getattr(trainer_utils, name)
    own = {"BEST": "best"} if name == "HubStrategy" else {}
    assert {member.name: member.value for member in ours} == {member.name: member.value for member in theirs} | own


@pytest.mark.parametrize("name", ["EvalLoopOutput", "PredictionOutput", "TrainOutput"])
def test_outputs_are_named_tuples_as_in_transformers(name: str) -> None:
    """Fields have the same names, in the same order."""
    ours, theirs = getattr(hexloop, name), getattr(trainer_utils, name)
    assert issubclass(ours, tuple)
    assert ours._fields == theirs._fields


@pytest.mark.parametrize("further", [{}, {"inputs": 3}, {"losses": 4}, {"inputs": 3, "losses": 4}])
def test_predictions_unpack_as_in_transformers(further: dict[str, Any]) -> None:
    """An EvalPrediction has the same elements, by iteration and by index."""
    ours, theirs = (library.EvalPrediction(1, 2, **further) for library in (hexloop, transformers))
    assert tuple(ours) == tuple(theirs)
    assert [ours[number] for number in range(len(tuple(ours)))] == list(theirs)
    with pytest.raises(IndexError):
        ours[len(tuple(ours))]


def drawn() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seeds_match_transformers() -> None:
    """The same seed gives the same random numbers from Python, numpy and torch."""
    hexloop.set_seed(11)
    ours = drawn()
    transformers.set_seed(11)
    assert drawn() == ours
    hexloop.set_seed(12)
    assert drawn() != ours


STATE_OF_A_PROCESS = """
import os, sys, torch, {library}
{call}
names = ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC",
         "FLASH_ATTENTION_DETERMINISTIC")
print([os.environ.get(name) for name in names], torch.are_deterministic_algorithms_enabled(),
      torch.is_deterministic_algorithms_warn_only_enabled(), torch.backends.cudnn.deterministic,
      torch.backends.cudnn.benchmark, float(torch.rand(())))
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    "call",
    [
        "enable_full_determinism(5, warn_only=True)",
        pytest.param("set_seed(5, deterministic=True)", marks=pytest.mark.matrix),
    ],
)
def test_determinism_matches_transformers(call: str) -> None:
    """In a process of its own, the environment, torch's flags and the first random number are equal."""
    printed = []
    for library in ("hexloop", "transformers"):
        program = STATE_OF_A_PROCESS.format(library=library, call=f"{library}.{call}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        printed.append(ended.stdout)
    assert printed[0] == printed[1]
    assert "True" in printed[0]


def test_the_last_checkpoint(tmp_path: Path) -> None:
    """It is the folder with the highest step, as in transformers; files and other names are ignored."""
    assert hexloop.get_last_checkpoint(tmp_path) is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-10-old", "xcheckpoint-99", "checkpoint-", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-500").write_text("no folder")
    last, theirs = hexloop.get_last_checkpoint(str(tmp_path)), cast(Any, trainer_utils)
    assert last == theirs.get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")
    with pytest.raises(FileNotFoundError):
        hexloop.get_last_checkpoint(tmp_path / "nowhere")


def test_the_last_checkpoint_of_a_url(tmp_path: Path) -> None:
    """A URL is listed through its storage, and the result is a URL."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.mkdirs("/runs/checkpoint-3")
    memory.pipe("/runs/checkpoint-12/manifest.json", b"{}")
    try:
        assert hexloop.get_last_checkpoint("memory://runs") == "memory://runs/checkpoint-12"
    finally:
        memory.rm("/runs", recursive=True)


class Row:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


ROWS: list[list[Any]] = [
    [{"label": 1, "x": [1, 2]}, {"label": 0, "x": [3, 4]}],
    [{"label": 0.5, "x": 1.5, "name": "a", "none": None}, {"label": 1.5, "x": 2.5, "name": "b", "none": None}],
    [{"label_ids": [1, 2], "x": np.ones(2)}, {"label_ids": [3, 4], "x": np.zeros(2)}],
    [{"label_ids": [0.5], "x": np.float32(1)}, {"label_ids": [1.5], "x": np.float32(2)}],
    [{"labels": 3, "x": True}, {"labels": 4, "x": False}],
    [{"label": [0, 1, 1], "x": 1}, {"label": [1, 0, 0], "x": 2}],
    [{"label": (0, 1), "x": 1}, {"label": (1, 0), "x": 2}],
    [{"label_ids": [[0, 1]], "x": 1}, {"label_ids": [[1, 0]], "x": 2}],
    [Row(label=np.int64(3), x=[1.0]), Row(label=np.int64(4), x=[2.0])],
]


@pytest.mark.parametrize("rows", ROWS, ids=range(len(ROWS)))
@pytest.mark.parametrize("kind", ["pt", "np"])
def test_batches_match_transformers(rows: list[Any], kind: str) -> None:
    """The default collator, as a function and as an object, returns the same tensors or arrays."""
    theirs = transformers.default_data_collator(rows, return_tensors=kind)
    for ours in (
        hexloop.default_data_collator(rows, return_tensors=kind),
        hexloop.DefaultDataCollator(return_tensors=kind)(rows),
        hexloop.DefaultDataCollator()(rows, return_tensors=kind),
    ):
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            assert type(ours[name]) is type(value)
            assert (ours[name].dtype, ours[name].tolist()) == (value.dtype, value.tolist()), name


def test_tensors_of_another_kind_are_refused() -> None:
    """The error lists the supported types."""
    with pytest.raises(errors.ConfigurationError, match="return_tensors='tf'"):
        hexloop.default_data_collator([{"x": 1}], return_tensors="tf")
