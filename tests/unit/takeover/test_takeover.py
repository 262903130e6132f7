"""`hexloop.takeover` in a process that has imported transformers: what it replaces, and that nothing stays behind."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any, cast
from unittest import mock

import pytest

import hexloop
from hexloop.app.takeover.names import FAMILY, FAMILY_NAMES, HOLDERS, module_name
from hexloop.domain.errors import ConfigurationError

transformers: Any = importlib.import_module("transformers")
integrations, trainer, trainer_callback, trainer_utils, training_args = (
    cast(Any, importlib.import_module(f"transformers.{name}"))
    for name in ("integrations", "trainer", "trainer_callback", "trainer_utils", "training_args")
)

pytestmark = pytest.mark.filterwarnings("ignore:These modules imported classes of transformers")

ORIGINALS = {
    (relative, name): vars(importlib.import_module(module_name(relative)))[name]
    for relative, listed in FAMILY.items()
    for name in listed
}


def state() -> dict[str, Any]:
    """Return everything that a takeover may change."""
    modules = [sys.modules[module_name(relative)] for relative in HOLDERS if module_name(relative) in sys.modules]
    assert len(modules) >= len(FAMILY)
    return {
        "classes": [type(module) for module in modules],
        "contents": [
            {name: id(value) for name, value in vars(module).items() if name in FAMILY_NAMES}
            for module in modules
            if module.__name__ != "transformers"  # lazy: it keeps what is read
        ],
        "finders": [finder for finder in sys.meta_path if type(finder).__module__.startswith("hexloop.app")],
        "trackers": integrations.TensorBoardCallback.__bases__,
        "arguments": hexloop.TrainingArguments.__post_init__,
        "spawning": importlib.import_module("multiprocessing.spawn").get_preparation_data,
    }


@pytest.fixture(autouse=True)
def _everything_is_restored() -> Iterator[None]:
    """Fail if a test leaves anything behind."""
    _ = transformers.Trainer, transformers.Seq2SeqTrainer  # lazy names are imported, and stay
    before = state()
    yield
    assert state() == before


def test_every_name_is_replaced() -> None:
    """In the module that defines it, each name is hexloop's during the takeover, and transformers' again afterwards."""
    with hexloop.takeover():
        for relative, name in ORIGINALS:
            assert getattr(sys.modules[module_name(relative)], name) is getattr(hexloop, name), name
    for (relative, name), original in ORIGINALS.items():
        assert getattr(sys.modules[module_name(relative)], name) is original, name


def test_modules_that_import_a_name_are_covered() -> None:
    """The package itself and modules that import a name from another have hexloop's too."""
    with hexloop.takeover():
        assert transformers.Trainer is hexloop.Trainer
        assert transformers.SchedulerType is hexloop.SchedulerType
        assert trainer.TrainerState is hexloop.TrainerState
        assert training_args.IntervalStrategy is hexloop.IntervalStrategy
        assert integrations.integration_utils.TrainerCallback is hexloop.TrainerCallback
        namespace: dict[str, Any] = {}
        exec("from transformers.optimization import SchedulerType", namespace)
        assert namespace["SchedulerType"] is hexloop.SchedulerType
        exec("from transformers.trainer_callback import *", namespace)
        assert namespace["TrainerControl"] is hexloop.TrainerControl


def test_transformers_keeps_its_own_classes() -> None:
    """Code of transformers sees its own classes, so its functions work on its own objects."""
    original = ORIGINALS["training_args", "TrainingArguments"]
    with hexloop.takeover():
        assert vars(trainer)["TrainingArguments"] is original
        assert transformers.set_seed is vars(trainer_utils)["set_seed"]
        assert transformers.optimization.get_scheduler.__globals__["SchedulerType"] is not hexloop.SchedulerType
        name: Any = hexloop.SchedulerType.COSINE
        import torch

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule = transformers.get_scheduler(name, optimizer, num_warmup_steps=1, num_training_steps=4)
    assert schedule.get_last_lr() == [0.0]


def test_nested_takeovers_are_counted() -> None:
    """The last one that ends restores, in whatever order they end; ending one again changes nothing."""
    outer, inner = hexloop.takeover(), hexloop.takeover()
    outer.restore()
    outer.restore()
    assert transformers.Trainer is hexloop.Trainer
    with inner, hexloop.takeover():
        assert transformers.Trainer is hexloop.Trainer
    assert transformers.Trainer is ORIGINALS["trainer", "Trainer"]
    inner.restore()


def test_an_error_restores() -> None:
    """A block that raises ends the takeover, and the error propagates."""
    with pytest.raises(ZeroDivisionError), hexloop.takeover():
        _ = 1 / 0
    assert transformers.Trainer is ORIGINALS["trainer", "Trainer"]


def read_often() -> set[Any]:
    return {trainer.Trainer for _ in range(5000)}


def test_optimized_code_sees_the_change() -> None:
    """Code that Python has specialized for the module reads the names of the moment."""
    before = read_often()
    with hexloop.takeover():
        assert read_often() == {hexloop.Trainer}
    assert read_often() == before == {ORIGINALS["trainer", "Trainer"]}


def test_a_patch_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test assigns is read until it is undone, by pytest's monkeypatch and by mock."""
    Fake: Any = type("Fake", (), {})  # noqa: N806 - a class

    with hexloop.takeover():
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "Trainer", Fake)
            assert trainer.Trainer is Fake
        assert trainer.Trainer is hexloop.Trainer
        package = importlib.import_module("transformers")
        with mock.patch("transformers.Trainer", Fake):
            assert package.Trainer is Fake
        assert package.Trainer is hexloop.Trainer
    assert trainer.Trainer is ORIGINALS["trainer", "Trainer"]


def test_an_assignment_stays() -> None:
    """A class that is assigned and not undone is still there after the takeover, as it would be without one."""
    Fake: Any = type("Fake", (), {})  # noqa: N806 - a class

    with hexloop.takeover():
        trainer.PrinterCallback = Fake
    try:
        assert trainer.PrinterCallback is Fake
    finally:
        trainer.PrinterCallback = ORIGINALS["trainer_callback", "PrinterCallback"]


def test_missing_attributes_are_missing() -> None:
    """A module still says which attribute it does not have, and new ones can be set and deleted."""
    with hexloop.takeover():
        with pytest.raises(AttributeError, match=r"transformers\.trainer.*no_such_name"):
            _ = trainer.no_such_name
        trainer.added = 1
        assert trainer.added == 1
        del trainer.added
        assert not hasattr(trainer, "added")


def test_a_second_package_is_taken_over() -> None:
    """While it is imported, transformers executes its package twice; both, and further ones, are taken over."""
    from transformers.utils.import_utils import direct_transformers_import

    first = importlib.import_module("transformers")
    second = direct_transformers_import(str(first.__path__[0]))
    assert second is not first
    with hexloop.takeover():
        assert first.Trainer is second.Trainer is hexloop.Trainer
        importlib.reload(importlib.import_module("transformers.processing_utils"))
        third = importlib.import_module("transformers")
        assert third not in (first, second)
        assert third.Trainer is hexloop.Trainer
    assert first.Trainer is third.Trainer is ORIGINALS["trainer", "Trainer"]


def test_modules_that_the_program_froze_are_taken_over() -> None:
    """`gc.freeze` hides objects from a search."""
    module = importlib.import_module("transformers")
    gc.freeze()
    with hexloop.takeover():
        assert module.Trainer is hexloop.Trainer
    assert module.Trainer is ORIGINALS["trainer", "Trainer"]
    assert gc.get_freeze_count() > 0


def test_reloaded_and_located_modules() -> None:
    """A module that is reloaded is taken over again, and looking for its spec alone changes nothing."""
    module = importlib.import_module("transformers.debug_utils")
    original = module.DebugOption
    with hexloop.takeover():
        assert importlib.util.find_spec("transformers.debug_utils") is not None
        importlib.reload(module)
        assert module.DebugOption is hexloop.DebugOption
        assert vars(module)["DebugOption"] is not original
    vars(module)["DebugOption"] = original


def test_trackers_are_callbacks() -> None:
    """Callbacks of transformers for trackers are TrainerCallbacks, so their unused events cost nothing."""
    with hexloop.takeover():
        assert issubclass(integrations.TensorBoardCallback, transformers.TrainerCallback)
        tracker = integrations.TensorBoardCallback(tb_writer=mock.Mock())
        handler = transformers.trainer_callback.CallbackHandler([tracker])
        assert len(handler.overriding("on_log")) == 1
        assert handler.overriding("on_step_begin") == ()
    assert issubclass(integrations.TensorBoardCallback, trainer_callback.TrainerCallback)
    assert not issubclass(integrations.TensorBoardCallback, hexloop.TrainerCallback)


def test_classes_of_libraries_derive_from_hexloop() -> None:
    """A library's Trainer, arguments and callbacks derive from hexloop's, and pass its checks by isinstance."""
    with hexloop.takeover():
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class LibraryTrainer(Trainer):
            pass

        class LibraryCallback(TrainerCallback):
            pass

        @dataclasses.dataclass
        class LibraryArguments(TrainingArguments):
            margin: float = 0.5

        arguments = LibraryArguments(output_dir="x", margin=0.25, report_to="none")
        assert issubclass(LibraryTrainer, hexloop.Trainer)
        assert isinstance(LibraryCallback(), hexloop.TrainerCallback)
        assert isinstance(arguments, transformers.TrainingArguments)
        assert isinstance(arguments.save_strategy, transformers.trainer_utils.SaveStrategy)
        assert arguments.parallel_mode is training_args.ParallelMode.NOT_PARALLEL


ENUMERATIONS = [
    name
    for name in sorted(FAMILY_NAMES - {"ParallelMode"})
    if isinstance(getattr(hexloop, name), type(hexloop.IntervalStrategy))
]


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_equal_those_that_were_imported_earlier(name: str) -> None:
    """Members of both libraries are equal and have the same hash, and either may be passed to either class.

    Those that only hexloop has come last.
    """
    ours = getattr(hexloop, name)
    theirs = next(original for (_, each), original in ORIGINALS.items() if each == name)
    own = [hexloop.HubStrategy.BEST] if name == "HubStrategy" else []
    assert list(ours) == [*theirs, *own]
    for mine, other in zip(ours, theirs, strict=not own):
        assert (hash(mine), {mine: 1}[other], ours(other), theirs(mine)) == (hash(other), 1, mine, other)


@pytest.mark.filterwarnings("error")
def test_modules_that_imported_a_class_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning names them and the classes; modules with equal enumerations only are not listed."""
    for name, contents in {
        "early_library": {"Trainer": trainer.Trainer, "TrainerState": trainer_callback.TrainerState},
        "derived_library": {"Special": type("Special", (trainer.Trainer,), {})},
        "harmless_library": {"IntervalStrategy": trainer_utils.IntervalStrategy},
    }.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    loaded = {name for name in sys.modules if name.startswith("tests.") or "test" in name}
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    with pytest.warns(UserWarning, match=r"early_library \(Trainer, TrainerState\)") as caught:
        hexloop.takeover().restore()
    (text,) = [str(each.message) for each in caught]
    assert "derived_library (Trainer)" in text
    assert "harmless_library" not in text
    assert "hexloop run" in text


@pytest.mark.parametrize("release", ["4.46.0", "5.99.0"])
def test_an_untested_release_is_warned_of(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning says which release is installed, and which are tested; the takeover happens."""
    monkeypatch.setattr(metadata, "version", lambda _: release)
    with pytest.warns(UserWarning, match=rf"transformers {release} is installed.*5\.0 to 5\.\d+"), hexloop.takeover():
        assert transformers.Trainer is hexloop.Trainer


def test_nested_takeovers_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the outermost takeover warns."""
    monkeypatch.setattr(metadata, "version", lambda _: "4.46.0")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hexloop.takeover(), hexloop.takeover():
            pass
    assert sum("is installed" in str(each.message) for each in caught) == 1


def test_names_that_transformers_has_removed() -> None:
    """Scripts of earlier releases import them from where they were, during a takeover only."""
    with hexloop.takeover():
        assert transformers.TFTrainer is hexloop.TFTrainer
        assert trainer_utils.ShardedDDPOption is hexloop.ShardedDDPOption
        assert trainer_utils.default_hp_space_sigopt is hexloop.default_hp_space_sigopt
    assert not hasattr(transformers, "TFTrainer")
    assert not hasattr(trainer_utils, "ShardedDDPOption")


def test_reproduce_is_the_default_of_arguments() -> None:
    """Arguments that do not set `reproduce` take that of the innermost takeover that has one."""
    with hexloop.takeover(reproduce="transformers"), hexloop.takeover():
        arguments: Any = hexloop.Seq2SeqTrainingArguments(output_dir="x", report_to="none")
        assert arguments.reproduce == "transformers"
    later: Any = hexloop.TrainingArguments(output_dir="x", report_to="none")
    assert later.reproduce is None
    with hexloop.takeover(reproduce="transformer"), pytest.raises(ConfigurationError, match="reproduce='transformer'"):
        hexloop.TrainingArguments(output_dir="x", report_to="none")


@pytest.mark.filterwarnings("ignore:.*is an argument of earlier releases:FutureWarning")
def test_a_refused_value_is_stored_until_training_or_evaluation() -> None:
    """A program may set arguments to None for a moment; one that stays is refused before it is used.

    Without a takeover it is refused at once, also by arguments that were made during one.
    """
    with hexloop.takeover():
        arguments = transformers.Seq2SeqTrainingArguments("out", gradient_checkpointing=True)
        before = dict(vars(arguments))
        for name, value in before.items():
            setattr(arguments, name, None)
            setattr(arguments, name, value)
        assert vars(arguments) == before
        arguments.check_stored()
        for name, value in (("include_num_input_tokens_seen", None), ("logging_steps", "often"), ("seed", -1)):
            setattr(arguments, name, value)
            assert getattr(arguments, name) == value
        for check in (arguments.check, arguments.check_stored):
            with pytest.raises(ConfigurationError) as caught:
                check()
            assert len(caught.value.problems) == 3
            assert arguments.logging_steps == "often"
        with pytest.raises(ConfigurationError, match="batch_size=-2"):
            arguments.set_training(batch_size=-2)
        arguments.seed, arguments.logging_steps, arguments.include_num_input_tokens_seen = 1, 10, "no"
        arguments.check()
    with pytest.raises(ConfigurationError, match="seed=-1"):
        arguments.seed = -1
    assert arguments.seed == 1
