"""The section `fine_tune`: its parts, its arguments, and its problems with their lines."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

import hexloop
from hexloop.app.recipe import read_recipe
from hexloop.domain.errors import ConfigurationError
from tests.unit.recipe.small_project import Project

DATA = "train_dataset: {call: project.points, count: 3}\n"


def problems(project: Project, text: str, *needed: str) -> list[str]:
    """Return the problems of a recipe, without the name of its file."""
    path = project.recipe(text)
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(path, needed)
    return [problem.removeprefix(f"{path}, ").removeprefix(f"{path}: ") for problem in caught.value.problems]


def test_the_section_chooses_the_trainer(project: Project) -> None:
    """Its arguments are those of SFTConfig, and its parts the Trainer's; a text is the model's name."""
    text = f"""\
{DATA}fine_tune:
  model: runs/base
  formatting_func: project.error
  packing: true
  max_length: 64
  loss_type: dft
  completion_only_loss: no
arguments: {{use_cpu: true, learning_rate: 1e-3}}
"""
    recipe = read_recipe(project.recipe(text), ("model", "train_dataset"))
    assert recipe.trainer_class is hexloop.SFTTrainer
    assert isinstance(recipe.arguments, hexloop.SFTConfig)
    args = recipe.arguments
    assert (args.packing, args.max_length, args.loss_type, args.completion_only_loss) == (True, 64, "dft", False)
    assert (args.learning_rate, args.logging_steps) == (1e-3, 10)
    assert recipe.make("model") == "runs/base"
    assert recipe.make("formatting_func").__name__ == "error"


def test_options_replace_what_the_section_says(project: Project) -> None:
    """The command line takes the arguments of SFTConfig as well."""
    text = "fine_tune: {model: runs/base, max_length: 64, dataset_text_field: story}\narguments: {use_cpu: true}\n"
    recipe = read_recipe(project.recipe(text), ("model",), Namespace(max_length="32"), ["--dataset_text_field", "x"])
    assert (recipe.arguments.max_length, recipe.arguments.dataset_text_field) == (32, "x")  # type: ignore[attr-defined]


def test_a_model_may_be_called(project: Project) -> None:
    """A mapping with a call makes the model, or its name; the model may stand outside of the section, too."""
    text = "fine_tune: {model: {call: project.any_of, name: x}}\narguments: {use_cpu: true}\n"
    assert read_recipe(project.recipe(text), ("model",)).make("model") == {"name": "x"}
    text = "model: {call: project.Line, slope: 2.0}\nfine_tune: {packing: false}\narguments: {use_cpu: true}\n"
    assert float(read_recipe(project.recipe(text), ("model",)).make("model").slope.detach()) == 2


def test_adapters(project: Project) -> None:
    """Keywords alone are those of LoRA for a causal language model, or of the adapters that peft_type names."""
    peft = pytest.importorskip("peft")

    def made(section: str) -> Any:
        text = f"fine_tune: {{model: a, peft_config: {section}}}\narguments: {{use_cpu: true}}\n"
        return read_recipe(project.recipe(text)).make("peft_config")

    lora = made("{r: 4, target_modules: [q_proj]}")
    assert isinstance(lora, peft.LoraConfig)
    assert (lora.r, lora.target_modules, lora.task_type) == (4, {"q_proj"}, "CAUSAL_LM")
    assert isinstance(made("{peft_type: ia3}"), peft.IA3Config)
    assert made("{task_type: SEQ_CLS}").task_type == "SEQ_CLS"
    assert made("{call: peft.LoraConfig, r: 3}").r == 3


def test_quantization(project: Project) -> None:
    """Keywords alone are those of bitsandbytes, or of the method that quant_method names."""
    import transformers

    def made(section: str) -> Any:
        text = f"fine_tune: {{model: a, quantization_config: {section}}}\narguments: {{use_cpu: true}}\n"
        return read_recipe(project.recipe(text)).make("quantization_config")

    found = made("{load_in_4bit: true, bnb_4bit_quant_type: nf4}")
    assert isinstance(found, transformers.BitsAndBytesConfig)
    assert (found.load_in_4bit, found.bnb_4bit_quant_type) == (True, "nf4")
    assert made("{load_in_8bit: true}").load_in_8bit
    assert isinstance(made("{quant_method: quanto, weights: int8}"), transformers.QuantoConfig)


def test_problems_are_reported_together_with_their_lines(project: Project) -> None:
    """Unknown keys, keys that belong elsewhere, wrong keywords and bad values."""
    pytest.importorskip("peft")
    text = """\
fine_tune:
  model: a
  packin: true
  learning_rate: 1e-3
  max_length: 64
  peft_config:
    rr: 3
  quantization_config:
    load_in_4bits: true
  completion_only_loss: maybe
arguments:
  max_length: 32
  use_cpu: true
"""
    found = problems(project, text, "model", "train_dataset")
    expected = [
        "line 3: You chose fine_tune.packin=True, but the section has no such key; did you mean packing?",
        "line 4: You chose fine_tune.learning_rate=0.001, but the section has no such key; learning_rate is an "
        "argument of every training, so put it under arguments.",
        "lines 5 and 12: max_length is given in fine_tune and in arguments; remove one of them.",
        "line 7: You chose fine_tune.peft_config.rr=3, but LoraConfig has no parameter rr; did you mean r?",
        "line 8: You chose fine_tune.quantization_config={'load_in_4bits': True}, but that names no method",
        "train_dataset is missing",
        "line 10: You chose completion_only_loss='maybe', but it takes a truth value",
    ]
    assert len(found) == len(expected)
    assert [each for each, start in zip(found, expected, strict=True) if not each.startswith(start)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fine_tune: 3\n", "line 1: You chose fine_tune=3, but it takes a mapping"),
        (
            "trainer: project.Mine\nfine_tune: {model: a}\n",
            "lines 1 and 2: You chose trainer='project.Mine', but the section fine_tune is for hexloop.SFTTrainer",
        ),
        (
            "model: project.instance\nfine_tune: {model: a}\n",
            "lines 1 and 2: model and fine_tune.model are both given; remove one of them.",
        ),
        ("model_init: project.Line\nfine_tune: {packing: false}\n", "line 1: You chose model_init, but fine-tuning"),
        (
            "fine_tune: {model: a, packing: true, max_length: null}\n",
            "line 1: You chose packing=True and max_length=None",
        ),
        ("fine_tune: {model: a, peft_config: {peft_type: lorra}}\n", "line 1: You chose fine_tune.peft_config.peft_t"),
    ],
)
def test_what_is_refused(text: str, expected: str, project: Project) -> None:
    """One sentence each."""
    (problem,) = problems(project, f"{text}arguments: {{use_cpu: true}}\n")
    assert problem.startswith(expected)


def test_an_error_notes_the_key(project: Project) -> None:
    """What a part of the section raises has a note with its line."""
    text = "fine_tune:\n  packing: false\n  model: {call: project.fails}\narguments: {use_cpu: true}\n"
    path = project.recipe(text)
    with pytest.raises(LookupError) as caught:
        read_recipe(path).make("model")
    assert caught.value.__notes__ == [f"{path}, line 3: This was raised while model was being made."]
