"""`hexloop.transformers.<name>`: hexloop's names, and transformers' own for the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hexloop
from hexloop.app.takeover.names import EQUIVALENTS, FAMILY, FORMER, OWN_NAMES, STAND_INS, module_name

OWN = [
    (relative, name) for table in (FAMILY, EQUIVALENTS, FORMER) for relative, listed in table.items() for name in listed
]
HANDED_ON = {
    "training_args": ("str_to_bool", "_convert_str_dict"),
    "trainer_utils": ("TrainerMemoryTracker", "number_of_arguments", "has_length", "speed_metrics"),
    "hf_argparser": ("DataClass", "DataClassType", "make_choice_type_function", "string_to_bool"),
    "trainer_pt_utils": (
        "IterableDatasetShard",
        "LabelSmoother",
        "get_parameter_names",
        "log_metrics",
        "nested_concat",
    ),
    "data.data_collator": ("DataCollatorForLanguageModeling", "DataCollatorForSeq2Seq", "DataCollatorMixin"),
    "optimization": ("Adafactor", "AdafactorSchedule", "GreedyLR", "_get_wsd_scheduler_lambda"),
    "trainer": ("TRAINING_ARGS_NAME", "unwrap_model"),
    "integrations": ("TensorBoardCallback",),
    "": ("AutoModel", "BertConfig"),
}


def stand_in(relative: str) -> Any:
    return import_module(module_name(relative, "hexloop.transformers"))


@pytest.mark.parametrize("relative", STAND_INS)
def test_every_module_exists(relative: str) -> None:
    """Each module of the table can be imported by its path, and from its parent."""
    module = stand_in(relative)
    parent, _, name = module.__name__.rpartition(".")
    assert getattr(import_module(parent), name) is module
    assert module_name(relative) in module.__doc__ or relative == ""


def test_own_names_are_hexloops() -> None:
    """They are hexloop's in the module that defines them, in modules that import them, and in the package."""
    for relative, name in OWN:
        assert getattr(stand_in(relative), name) is getattr(hexloop, name)
        assert getattr(stand_in(""), name) is getattr(hexloop, name)
    assert stand_in("trainer").TrainerState is hexloop.TrainerState
    assert stand_in("optimization").SchedulerType is hexloop.SchedulerType


def test_other_names_are_handed_on() -> None:
    """They are the objects of transformers."""
    for relative, listed in HANDED_ON.items():
        for name in listed:
            assert getattr(stand_in(relative), name) is getattr(import_module(module_name(relative)), name), name


def test_all_names_can_be_imported_at_once() -> None:
    """A star import brings both kinds of names."""
    namespace: dict[str, Any] = {}
    exec("from hexloop.transformers.trainer_utils import *", namespace)
    assert namespace["IntervalStrategy"] is hexloop.IntervalStrategy
    assert namespace["has_length"].__module__ == "transformers.trainer_utils"
    assert {"Trainer", "AutoModel"} <= set(dir(stand_in("")))


def test_names_and_modules_that_do_not_exist() -> None:
    """Errors name the module, and the release of transformers."""
    with pytest.raises(AttributeError, match=r"transformers\.trainer of transformers 5.* has no 'no_such_name'"):
        _ = stand_in("trainer").no_such_name
    with pytest.raises(ModuleNotFoundError, match=r"hexloop\.transformers\.nowhere"):
        import_module("hexloop.transformers.nowhere")


def test_type_checkers_find_the_same_names() -> None:
    """In each module of the table hexloop's own, with their types; the other names pass."""
    folder = Path(hexloop.__file__).parent / "transformers"
    modules = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip("."): path.read_text()
        for path in folder.rglob("*.py")
    }
    assert set(modules) == set(STAND_INS)
    for relative, text in modules.items():
        (shown,) = (node.body[0] for node in ast.parse(text).body if isinstance(node, ast.If))
        assert isinstance(shown, ast.ImportFrom)
        names = {(each.name, each.asname) for each in shown.names}
        if relative:
            assert (shown.module, names) == ("hexloop.transformers", {("*", None)})
        else:
            assert (shown.module, names) == ("hexloop", {(name, name) for name in OWN_NAMES})


WITHOUT = """
import sys
from hexloop.transformers import TrainingArguments
from hexloop.transformers.trainer_utils import BestRun, IntervalStrategy, get_last_checkpoint
from hexloop.transformers.integrations import hp_params
from hexloop.transformers.trainer_callback import TrainerCallback
assert "transformers" not in sys.modules and "torch" not in sys.modules
sys.modules["transformers"] = None
import hexloop
from hexloop.transformers.trainer import Trainer
from hexloop.transformers.data.data_collator import default_data_collator
assert Trainer is hexloop.Trainer
try:
    from hexloop.transformers.trainer_utils import has_length
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.matrix
def test_without_transformers() -> None:
    """Names of hexloop load neither torch nor transformers before they need them; others say what to install."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hexloop.transformers.trainer_utils.has_length is transformers' own" in done.stdout
    assert "pip install 'transformers>=5.0'" in done.stdout
