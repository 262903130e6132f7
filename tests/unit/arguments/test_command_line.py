"""Arguments as command-line options."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import attrs
import pytest

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.documents import from_document, read_yaml
from hexloop.app.arguments.parser import add_arguments, override
from hexloop.domain.errors import ConfigurationError
from tests.unit.arguments.sources import parse


@dataclasses.dataclass
class Mine(TrainingArguments):
    """The project's own arguments."""

    extra: int = dataclasses.field(default=3, metadata={"help": "100% mine"})
    bare: list[float] = dataclasses.field(default_factory=list)


@attrs.frozen
class Recipe:
    training: TrainingArguments
    seed: int = 0


def test_options_of_every_type_are_parsed() -> None:
    """Numbers, booleans in all spellings, lists, JSON, enumerations and None are parsed."""
    made = parse(
        TrainingArguments,
        [
            *("--output_dir", "out", "--learning_rate", "1e-4", "--max-steps", "-1", "--save_steps=0.5"),
            *("--bf16", "--dataloader-pin-memory", "false", "--no_remove_unused_columns", "--tf32", "none"),
            *("--lr_scheduler_kwargs", '{"num_cycles": 2}', "--lr_scheduler_type", "cosine"),
            *("--label_names", "a", "b", "--report_to", "tensorboard", "--include_for_metrics", "loss", "inputs"),
            *("--eval_accumulation_steps", "null", "--include_num_input_tokens_seen"),
        ],
    )
    assert (made.output_dir, made.learning_rate, made.max_steps, made.save_steps) == ("out", 1e-4, -1, 0.5)
    assert (made.bf16, made.dataloader_pin_memory, made.remove_unused_columns) == (True, False, False)
    assert (made.tf32, made.eval_accumulation_steps) == (None, None)
    assert (made.lr_scheduler_kwargs, made.lr_scheduler_type) == ({"num_cycles": 2}, "cosine")
    assert (made.label_names, made.report_to, made.include_for_metrics) == (
        ["a", "b"],
        ["tensorboard"],
        ["loss", "inputs"],
    )
    assert made.include_num_input_tokens_seen == "all"


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["--bf16"], True),
        (["--bf16", "true"], True),
        (["--bf16", "false"], False),
        (["--no_bf16"], False),
        (["--no-bf16"], False),
        (["--bf16", "--no_bf16"], False),
        (["--no_bf16", "--bf16", "yes"], True),
        ([], False),
    ],
)
def test_boolean_options_have_several_spellings(options: list[str], value: bool) -> None:
    """`--flag`, `--flag true`, `--flag false` and `--no_flag` work, and the last one counts."""
    assert parse(TrainingArguments, options).bf16 is value


def test_bare_option_sets_an_optional_boolean() -> None:
    """A boolean argument with default None is set by its bare option."""
    assert parse(TrainingArguments, ["--gradient_checkpointing"]).activation_checkpointing is True
    assert parse(TrainingArguments, ["--no_disable_tqdm"]).disable_tqdm is False


def test_all_problems_are_reported_by_option() -> None:
    """One error lists misspelt options, stray arguments, bad values and contradictions."""
    with pytest.raises(ConfigurationError) as caught:
        parse(
            TrainingArguments,
            [
                "--learning_rat",
                "1",
                "--sede=3",
                "stray",
                "--seed",
                "x",
                "--fp16",
                "--bf16",
                "--fsdpp",
                "--max_steps",
                "0",
            ],
        )
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "You gave --learning_rat 1, but there is no option of that name; did you mean --learning_rate?",
        "You gave --sede 3, but there is no option of that name; did you mean --seed?",
        "You gave 'stray', but no option takes it; remove it.",
        "You gave --fsdpp, but there is no option of that name; did you mean --fsdp?",
        "--max_steps",
        "--seed",
        "--fp16 and --bf16",
    ]


def test_options_override_a_recipe(tmp_path: Path) -> None:
    """Options override a file's values at any depth, and problems name the option."""
    path = tmp_path / "recipe.yaml"
    path.write_text("training:\n  output_dir: out\n  max_steps: 3\n  learning_rate: 0.1\nseed: 1\n")
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    add_arguments(parser, TrainingArguments)
    chosen = parser.parse_args([str(path), "--max_steps", "0", "--seed", "5"])
    document = read_yaml(chosen.recipe)
    override(document, TrainingArguments, chosen, at=("training",))
    with pytest.raises(ConfigurationError, match="--max_steps: You chose max_steps='0'"):
        from_document(Recipe, document)
    chosen.max_steps = "7"
    override(document, TrainingArguments, chosen, at=("training",))
    made = from_document(Recipe, document)
    assert (made.training.max_steps, made.training.seed, made.training.learning_rate, made.seed) == (7, 5, 0.1, 1)


def test_fields_of_a_subclass_are_options() -> None:
    """Fields of a subclass are options under their own heading, converted by type."""
    made = parse(Mine, ["--extra", "4", "--bare", "1e-1", "2"])
    assert (made.extra, made.bare) == (4, [0.1, 2])


def test_help_lists_every_argument_once_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` lists each argument once in its group with its help and default."""
    with pytest.raises(SystemExit) as caught:
        parse(Mine, ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(Mine):
        assert shown.count(f"  --{field.name} ") == 1, field.name
    for heading in ("Checkpoints:", "Optimizer and learning rate:", "hexloop's own:", "The project's own arguments:"):
        assert f"\n{heading}\n" in shown
    assert "--no_bf16" not in shown
    assert "--learning-rate" not in shown
    assert "100% mine (default: 3)" in shown
