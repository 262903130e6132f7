"""The page of all arguments matches the declarations, and what it shows works."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.declaration import GROUP
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments
from hexloop.domain.errors import ConfigurationError
from tests.unit.arguments.page import (
    CHOICES_PAGE,
    METHODS_PAGE,
    OLDEST,
    PAGE,
    choices_page,
    example_of,
    line_of,
    methods_page,
    option_of,
    page,
    shown,
)
from tests.unit.arguments.sources import from_yaml_file, parse
from tests.unit.reference.pages import without_overview

NEEDS: Mapping[str, Mapping[str, Any]] = {
    "dataloader_prefetch_factor": {"dataloader_num_workers": 2},
    "dataloader_persistent_workers": {"dataloader_num_workers": 2},
    "dataloader_multiprocessing_context": {"dataloader_num_workers": 2},
    "dataloader_timeout": {"dataloader_num_workers": 2},
    "ema_start_step": {"ema_decay": 0.999},
    "ema_update_every": {"ema_decay": 0.999},
    "ema_weights": {"ema_decay": 0.999},
    "peak_flops": {"log_goodput": True},
    "load_best_model_at_end": {"eval_strategy": "steps"},
    "packing": {"max_length": 512},
    "eval_packing": {"packing": True, "max_length": 512},
}
"""Arguments that are refused alone, and what they need."""

ELSEWHERE = frozenset({"parallelism_config", "bf16", "fp16", "tf32", "fp8"})
"""Arguments whose example depends on the machine, or that have none."""


def arguments() -> Iterator[tuple[type[Any], str]]:
    """Yield every argument with the class that has it."""
    for field in dataclasses.fields(Seq2SeqTrainingArguments):
        yield Seq2SeqTrainingArguments, field.name
    for name in vars(SFTConfig)[GROUP]:
        yield SFTConfig, name


def parts(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:2])


def test_page_matches_the_declarations() -> None:
    """The pages are up to date; `python -m tests.unit.arguments.page` regenerates them."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert METHODS_PAGE.read_text(encoding="utf-8").startswith("# ")
    assert without_overview(METHODS_PAGE.read_text(encoding="utf-8")) == methods_page()
    assert CHOICES_PAGE.read_text(encoding="utf-8") == choices_page()


def test_every_argument_has_a_row_and_nothing_else_has() -> None:
    """Those of earlier releases as well."""
    assert shown().keys() == {name for _, name in arguments()} | LEGACY_ARGUMENTS.keys()


def test_the_releases_agree_with_the_installed_one() -> None:
    """It has the arguments that are said to be in it, and no other argument of hexloop."""
    transformers = pytest.importorskip("transformers")
    installed = parts(version("transformers"))
    theirs = {field.name for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    for name, row in shown().items():
        since, until = row.since.strip("-") or "99.0", row.until.strip("-") or "99.0"
        assert (name in theirs) == (parts(since) <= installed <= parts(until)), name
    assert parts(OLDEST) < installed


@pytest.mark.parametrize("part", range(4))
def test_an_option_and_a_line_of_yaml_set_the_same_value(part: int, tmp_path: Path) -> None:
    """Both are accepted, and change the argument."""
    file = tmp_path / "arguments.yaml"
    different: dict[str, Any] = {}
    for cls, name in list(arguments())[part::4]:
        if name in ELSEWHERE:
            continue
        value, needs = example_of(cls, name), NEEDS.get(name, {})
        given = [word for each, needed in needs.items() for word in option_of(each, needed)]
        file.write_text("".join(f"{line_of(each, needed)}\n" for each, needed in {**needs, name: value}.items()))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                by_option = getattr(parse(cls, [*given, *option_of(name, value)]), name)
                by_file = getattr(from_yaml_file(cls, file), name)
        except ConfigurationError as error:
            different[name] = error
            continue
        if by_option != by_file or by_file == cls.__dataclass_fields__[name].default:
            different[name] = by_option, by_file
    assert different == {}


def test_text_that_yaml_would_read_otherwise_is_quoted() -> None:
    """So that `no` is a text."""
    assert line_of("eval_strategy", "no") == 'eval_strategy: "no"'
    assert line_of("output_dir", "runs/a") == "output_dir: runs/a"
    assert issubclass(SFTConfig, TrainingArguments)
