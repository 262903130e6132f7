"""Features of the parser beyond those of transformers, and its use in scripts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attrs
import pytest
import transformers

import hexloop
from hexloop import ConfigurationError, TrainingArguments
from hexloop.app.arguments.parser import HfArgumentParser
from tests.unit.arguments.parser_classes import Attrs, Colour, Generous, Needing, Plain

NEEDED = ["--name", "n", "--needed", "blue"]


@dataclass
class ScriptArguments(TrainingArguments):
    """A script's own arguments added to those of training."""

    freeze: bool = field(default=False, metadata={"help": "freeze 90% of the layers".replace("%", "%%")})
    layers: list[int] = field(default_factory=list)


@attrs.define
class AttrsArguments(TrainingArguments):
    beam: int = 4


@dataclass
class DataArguments:
    task: str | None = None
    overwrite_output_dir: bool = False


def parse(cls: Any, *words: str, **options: Any) -> Any:
    return HfArgumentParser(cls).parse_args_into_dataclasses(list(words), look_for_args_file=False, **options)[0]


def problems_of(make: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        make()
    return caught.value.problems


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('--mapping {"a":1}', {"mapping": {"a": 1}}),
        ('--maybe_mapping {"a":{"b":[1]}}', {"maybe_mapping": {"a": {"b": [1]}}}),
        ("--number 3", {"number": 3}),
        ("--number 3.5", {"number": 3.5}),
        ("--truth_or_text", {"truth_or_text": True}),
        ("--truth_or_text off", {"truth_or_text": False}),
        ("--no_truth_or_text", {"truth_or_text": False}),
        ("--truth_or_text steps", {"truth_or_text": "steps"}),
        ("--pair 4 5", {"pair": (4, 5)}),
        ("--unique a b a", {"unique": {"a", "b"}}),
        ("--choices red blue", {"choices": ["red", "blue"]}),
        ("--nested x y", {"nested": ["x", "y"]}),
        ("--anything goes", {"anything": "goes"}),
        ("--numbers [1,2,3]", {"numbers": [1, 2, 3]}),
        ("--number_or_text 5", {"number_or_text": 5}),
        ("--number_or_text all", {"number_or_text": "all"}),
        ("--several_or_text one", {"several_or_text": "one"}),
        ("--several_or_text one two", {"several_or_text": ["one", "two"]}),
    ],
)
def test_additional_types_of_values(line: str, wanted: dict[str, Any]) -> None:
    """JSON text, unions of numbers, lists of strings and booleans in unions are converted."""
    made = parse(Generous, *line.split())
    assert {name: getattr(made, name) for name in wanted} == wanted
    untouched = vars(Generous()).keys() - wanted.keys()
    assert {name: getattr(made, name) for name in untouched} == {name: getattr(Generous(), name) for name in untouched}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--mapping [1]", "is not a mapping; write its JSON text"),
        ("--mapping {a:1}", "is not a mapping"),
        ("--choices red green", "'green' is not one of red, blue"),
        ("--numbers 1 x", "invalid literal for int"),
        ("--number x", "invalid"),
    ],
)
def test_wrong_value_exits_like_argparse(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The usage and the reason are printed with the option's name."""
    with pytest.raises(SystemExit, match="2"):
        parse(Generous, *line.split())
    printed = capsys.readouterr().err
    assert re.search(rf"error: argument {line.split(maxsplit=1)[0]}.*{re.escape(message)}", printed, re.DOTALL), printed


def test_attrs_classes() -> None:
    """Names without underscore, converters, factories and computed defaults work as in a call."""
    assert parse(Attrs, "-s", "5", "--secret", "x", "--kind", "blue", "--items", "1", "2") == Attrs(
        secret="x", steps=5, kind=Colour.BLUE, items=[1, 2]
    )
    assert parse(Attrs, "--steps", "3").twice == 6
    assert parse(Attrs, "--steps", "3", "--twice", "7").twice == 7
    assert "hidden" not in HfArgumentParser(Attrs).format_help()


def test_default_factories_run_for_each_object() -> None:
    """Two parses share no list from a default factory."""
    parser = HfArgumentParser(Plain)
    one, other = (parser.parse_args_into_dataclasses(NEEDED, look_for_args_file=False)[0] for _ in range(2))
    one.numbers.append(99)
    assert other.numbers == [1, 2]


def test_defaults_can_be_set() -> None:
    """`set_defaults` applies to the class, as in argparse."""
    parser = HfArgumentParser((Plain, TrainingArguments))
    parser.set_defaults(count=9, learning_rate=0.25, flag=True)
    plain, arguments = parser.parse_args_into_dataclasses([*NEEDED, "--output_dir", "o", "--no_flag"])
    assert (plain.count, plain.flag, arguments.learning_rate) == (9, False, 0.25)


def test_several_classes_a_namespace_and_remaining_arguments() -> None:
    """Objects come in the order of classes, then the namespace, then the remaining arguments."""
    parser = HfArgumentParser([Attrs, TrainingArguments], description="trains")
    assert isinstance(parser, argparse.ArgumentParser)
    parser.add_argument("--config", default="c")
    parser.add_argument("file")
    words = ["in.txt", "--steps", "2", "--output_dir", "o", "--config", "d", "--wandb", "yes"]
    made, arguments, namespace, left = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
    assert (made.steps, arguments.output_dir) == (2, "o")
    assert vars(namespace) == {"config": "d", "file": "in.txt"}
    assert left == ["--wandb", "yes"]
    assert vars(HfArgumentParser().parse_args([])) == {}


def test_added_option_overrides_an_old_name() -> None:
    """A script may add an option with the name of an old argument."""
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    parser.add_argument("--no_cuda", action="store_true")
    data, arguments, namespace = parser.parse_args_into_dataclasses(["--output_dir", "o", "--no_cuda"])
    assert namespace.no_cuda
    assert not arguments.use_cpu
    data, arguments, _ = parser.parse_args_into_dataclasses(["--output_dir", "o", "--overwrite_output_dir"])
    assert data.overwrite_output_dir
    assert not arguments.overwrite_output_dir


@pytest.mark.parametrize("handler", ["error", "resolve"])
def test_added_option_is_kept_for_any_conflict_handler(handler: str) -> None:
    """Options for old names never replace options added by a script."""
    parser = HfArgumentParser(TrainingArguments, conflict_handler=handler)
    parser.add_argument("--no-cuda", dest="cuda", action="store_false")
    parser.add_argument("--no_bf16", dest="narrow", action="store_false")
    *_, namespace = parser.parse_args_into_dataclasses(["--output_dir", "o", "--no-cuda", "--no_bf16"])
    assert vars(namespace) == {"cuda": False, "narrow": False}


def test_old_names_of_arguments() -> None:
    """Options of earlier releases keep their meaning, with a warning."""
    line = "--output_dir o --evaluation_strategy steps --per-gpu-train-batch-size 3 --no_cuda --eval_steps 5"
    with pytest.warns(FutureWarning, match="is an argument of earlier releases"):
        made = parse(TrainingArguments, *line.split())
    assert (made.eval_strategy, made.per_device_train_batch_size, made.use_cpu) == ("steps", 3, True)
    with pytest.warns(FutureWarning, match="per_gpu_eval_batch_size"):
        (made,) = HfArgumentParser(TrainingArguments).parse_dict({"output_dir": "o", "per_gpu_eval_batch_size": 5})
    assert made.per_device_eval_batch_size == 5


LINES = [
    "",
    "--learning_rate 3e-4 --num_train_epochs 2.5 --per_device_train_batch_size 7 --warmup_steps 0.1 --seed 3",
    "--eval_strategy steps --eval_steps 20 --save_strategy=steps --save_steps 40 --load_best_model_at_end",
    "--bf16 --tf32 false --no_logging_nan_inf_filter --dataloader_pin_memory no --activation_checkpointing true",
    '--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr":1e-6} --optim sgd --optim_args momentum=1',
    '--activation_checkpointing_kwargs {"use_reentrant":false} --label_names start end --run_name r --disable_tqdm 1',
    "--remove_unused_columns no --metric_for_best_model accuracy --greater_is_better True --max-steps 9",
]


@pytest.mark.parametrize("cls", [TrainingArguments, ScriptArguments, AttrsArguments], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("line", LINES)
def test_training_arguments_equal_transformers(cls: Any, line: str, tmp_path: Path) -> None:
    """A command line gives the values that transformers' parser and class give."""
    words = [*f"--output_dir {tmp_path} --report_to none --use_cpu".split(), *line.split()]
    ours = parse(cls, *words)
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)  # type: ignore[arg-type]
    (theirs,) = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    names = [
        word.lstrip("-").removeprefix("no_").replace("-", "_").partition("=")[0] for word in words if word[:2] == "--"
    ]
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    same = TrainingArguments(**{name: getattr(theirs, name) for name in names})
    assert same.to_dict() == {name: value for name, value in ours.to_dict().items() if name in same.to_dict()}


def test_arguments_of_a_subclass() -> None:
    """Fields of a subclass are options too."""
    made = parse(ScriptArguments, *["--output_dir", "o", "--freeze", "--layers", "1", "2", "--bf16", "--no_bf16"])
    assert (made.freeze, made.layers, made.bf16) == (True, [1, 2], False)
    assert parse(AttrsArguments, "--output_dir", "o", "--beam", "2").beam == 2


def test_all_problems_of_a_command_line_are_reported() -> None:
    """One error lists unknown options with the closest name, stray arguments, and rejected values."""
    words = [
        "--output_dir",
        "o",
        "--learnign_rate",
        "3",
        "stray",
        "--max_grad_norm",
        "-1",
        "--zzz",
        "--optim",
        "adamw_torhc",
    ]
    found = problems_of(lambda: parse((Attrs, TrainingArguments), *words))
    assert found[0] == "You gave --learnign_rate 3, but there is no option of that name; did you mean --learning_rate?"
    assert found[1] == "You gave 'stray', but no option takes it; remove it."
    assert found[2] == "You gave --zzz, but there is no option of that name; leave it out."
    assert any("max_grad_norm=-1.0" in problem for problem in found)
    assert any("adamw_torch" in problem and "optim='adamw_torhc'" in problem for problem in found)
    assert len(found) == 5


def test_all_problems_of_a_file_are_reported(tmp_path: Path) -> None:
    """One error lists unknown keys, missing values and rejected values, each with its line."""
    file = tmp_path / "arguments.yaml"
    file.write_text("layers: 3\nlearnign_rate: 1\nmax_grad_norm: -1\noutput_dir: o\n")
    parser = HfArgumentParser((Needing, TrainingArguments))
    found = problems_of(lambda: parser.parse_yaml_file(file))
    assert found[0].startswith(f"{file}, line 2: You chose learnign_rate=1, but")
    assert found[0].endswith("did you mean learning_rate?")
    assert found[1] == "Needing needs model, which is missing; give it a value."
    assert found[2].startswith(f"{file}, line 3: You chose max_grad_norm=-1")


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_files(kind: str, tmp_path: Path) -> None:
    """Values of a file go to the classes with these fields; extra keys need allow_extra_keys."""
    file = tmp_path / f"arguments.{kind}"
    values = {"model": "m", "layers": 2, "output_dir": "o", "learning_rate": 1e-3, "bf16": True, "extra": 1}
    file.write_text(json.dumps(values))
    parser = HfArgumentParser((Needing, TrainingArguments))
    read = parser.parse_json_file if kind == "json" else parser.parse_yaml_file
    made, arguments = read(str(file), allow_extra_keys=True)
    assert made == Needing("m", 2)
    assert (arguments.learning_rate, arguments.bf16) == (1e-3, True)
    with pytest.raises(ConfigurationError, match=r"line .*extra=1"):
        read(file)
    file.write_text("[1, 2]")
    with pytest.raises(ConfigurationError, match="not a mapping; give values by their names"):
        read(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read(tmp_path / "nowhere")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a script and set the command line that started it."""
    script = tmp_path / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "5"])
    return script


def test_arguments_from_files(script: Path) -> None:
    """Arguments come from the script's .args file, then from named files, then from the command line."""
    parser, folder = HfArgumentParser(Attrs), script.parent
    (folder / "train.args").write_text("--steps 1\n--secret beside --items 1 2\n")
    (folder / "other.args").write_text("--secret other")
    (folder / "third.args").write_text("--items 9 --secret third")

    def made(*args: Any, **options: Any) -> Any:
        return parser.parse_args_into_dataclasses(*args, **options)[0]

    assert made() == Attrs("beside", 5, items=[1, 2])
    assert made(look_for_args_file=False) == Attrs(steps=5)
    assert made(args_filename=str(folder / "other.args")) == Attrs("other", 5)
    named = ["--args", str(folder / "other.args"), "--steps", "7", "--args", str(folder / "third.args")]
    assert made(named, args_file_flag="--args") == Attrs("third", 7, items=[9])
    assert made(named, args_file_flag="--args", look_for_args_file=False) == Attrs("third", 7, items=[9])
    theirs = transformers.HfArgumentParser(Plain)  # type: ignore[arg-type]
    (folder / "train.args").write_text("--name beside --needed red --count 4")
    for each in (HfArgumentParser(Plain), theirs):
        found = each.parse_args_into_dataclasses(["--count", "6"])[0]
        assert (found.name, found.count) == ("beside", 6)


def test_missing_args_files(script: Path) -> None:
    """A named file must exist; the one beside the script is optional."""
    parser = HfArgumentParser(Attrs)
    assert parser.parse_args_into_dataclasses()[0].steps == 5
    for options in ({"args_filename": "no.args"}, {"args": ["-f", "no.args"], "args_file_flag": "-f"}):
        with pytest.raises(ConfigurationError, match=r"arguments file 'no.args' cannot be read"):
            parser.parse_args_into_dataclasses(**options)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are listed by class with help, choices and default; old names are hidden."""

    @dataclass
    class Named(DataArguments):
        _argument_group_name = "About the data"

    with pytest.raises(SystemExit, match="0"):
        HfArgumentParser((Plain, Attrs, Named, ScriptArguments)).parse_args_into_dataclasses(["--help"])
    printed = capsys.readouterr().out
    titles = ["\nPlain:", "\nAttrs:", "\nAbout the data:", "\nScriptArguments:"]
    places = [printed.index(title) for title in titles]
    assert places == sorted(places)
    assert printed.index("--secret") < printed.index("how many (default: 1)")
    assert "freeze 90% of the layers" in printed
    assert "--eval_strategy {no,steps,epoch}" in printed
    assert "{red,blue}" in printed
    assert "--no_other_flag" in printed
    assert "--evaluation_strategy" not in printed


@dataclass
class Unresolved:
    value: NotThere = 1  # type: ignore[name-defined]  # noqa: F821 - that it cannot be resolved is the point


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((Plain, Generous), "Plain and Generous cannot be parsed together: each has a field numbers; rename one."),
        ((dict,), "it has no fields; make it an attrs class or a dataclass"),
        ((Unresolved,), "the types of the fields of Unresolved cannot be resolved .*NotThere"),
    ],
)
def test_classes_that_cannot_be_parsed(classes: Any, message: str) -> None:
    """Unsupported classes are rejected when the parser is built."""
    with pytest.raises(ConfigurationError, match=message):
        HfArgumentParser(classes)


def test_parser_is_exported_by_hexloop() -> None:
    """Scripts import the parser from hexloop."""
    assert hexloop.HfArgumentParser is HfArgumentParser
