"""`hexloop init`: write a recipe, a script that does the same, and the code and data that both name."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined

from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_lines
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.regular_files import write_atomically

SAMPLE_DATA = "data.jsonl"
"""The file with a few samples that is written if no data are named."""


@frozen
class Starter:
    """What can be started from. title: of the recipe. arguments: of the run.

    model: the usual one, "" if none is loaded.

    samples: makes a few samples, so that the run trains before there are real data.
    """

    title: str
    arguments: Mapping[str, Any]
    model: str = ""
    samples: Callable[[], list[dict[str, Any]]] | None = None


def _texts() -> list[dict[str, Any]]:
    good, bad = ("wonderful", "a pleasure", "better than hoped", "superb"), ("dull", "a waste", "far too long", "poor")
    things = ("The film", "The book", "The concert", "The meal", "The journey")
    rows = [(thing, word, "good") for thing in things for word in good]
    rows += [(thing, word, "bad") for thing in things for word in bad]
    return [{"text": f"{thing} was {word}.", "label": label} for thing, word, label in rows]


def _conversations() -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {number} plus {number}?"},
                {"role": "assistant", "content": f"It is {2 * number}."},
            ]
        }
        for number in range(40)
    ]


LAST_BEST: Mapping[str, Any] = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,
    "load_best_model_at_end": True,
}

STARTERS: Mapping[str, Starter] = {
    "own": Starter(
        "A model and data of your own, in PyTorch.",
        {
            "num_train_epochs": 20,
            "per_device_train_batch_size": 32,
            "learning_rate": 0.01,
            "lr_scheduler_type": "cosine",
            "logging_strategy": "epoch",
            **LAST_BEST,
            "metric_for_best_model": "accuracy",
        },
    ),
    "text": Starter(
        "A model of transformers that is fine-tuned to classify texts.",
        {
            "num_train_epochs": 3,
            "per_device_train_batch_size": 16,
            "learning_rate": 5e-05,
            "warmup_steps": 0.1,
            "weight_decay": 0.01,
            "logging_steps": 10,
            **LAST_BEST,
            "metric_for_best_model": "accuracy",
        },
        "distilbert/distilbert-base-uncased",
        _texts,
    ),
    "chat": Starter(
        "A language model that is fine-tuned on conversations.",
        {
            "num_train_epochs": 3,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "learning_rate": 0.0002,
            "warmup_steps": 0.05,
            "logging_steps": 10,
            **LAST_BEST,
        },
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        _conversations,
    ),
}
"""What `--kind` chooses from. Models are named, and loaded when the run starts."""


@frozen
class Choices:
    """What is to be written. data: a file that exists, relative to the folder; "" for the samples."""

    kind: str
    folder: Path
    model: str
    data: str
    lora: bool


def run(options: Namespace) -> ExitCode:
    """Write the files, and print what to do with them. Raises ConfigurationError if one exists already."""
    choices = _choices(options)
    files = written_files(choices)
    if existing := [name for name in files if os.path.lexists(choices.folder / name)]:
        raise ConfigurationError(
            f"{choices.folder / name} exists already; choose another folder, as in 'hexloop init my_run'."
            for name in existing
        )
    try:
        choices.folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomically(choices.folder / name, text.encode())
    except OSError as error:
        raise ConfigurationError(
            f"The files cannot be written to {choices.folder} ({error.strerror or error}); choose another folder."
        ) from error
    recipe = shlex.quote(os.path.relpath(choices.folder / "recipe.yaml"))
    print_lines(
        f"Wrote {', '.join(files)} to {choices.folder}.",
        f"Look for mistakes with:  hexloop train {recipe} --check",
        f"Train with:              hexloop train {recipe}",
    )
    return ExitCode.DONE


def written_files(choices: Choices) -> dict[str, str]:
    """Return the contents of the files by name."""
    starter = STARTERS[choices.kind]
    environment = Environment(
        loader=PackageLoader("hexloop.app.command_line", "starters"), autoescape=False, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["python"] = lambda value: json.dumps(value) if isinstance(value, str) else repr(value)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    values = {
        "title": starter.title,
        "arguments": {"output_dir": "runs/first", "seed": 0, **starter.arguments},
        "model": choices.model,
        "data": choices.data or SAMPLE_DATA,
        "lora": choices.lora,
    }
    parts = environment.get_template(f"{choices.kind}/parts.yaml.jinja").render(values)
    files = {"recipe.yaml": environment.get_template("recipe.yaml.jinja").render(values, parts=parts)}
    for name in ("my_project.py", "train.py"):
        files[name] = environment.get_template(f"{choices.kind}/{name}.jinja").render(values)
    if starter.samples is not None and not choices.data:
        lines = [json.dumps(each, ensure_ascii=False) for each in starter.samples()]
        files[SAMPLE_DATA] = "".join(f"{line}\n" for line in lines)
    return files


def _choices(options: Namespace) -> Choices:
    """Return what is chosen: by options, otherwise by questions on a terminal, and otherwise the usual."""
    asks = options.kind is None and sys.stdin is not None and sys.stdin.isatty()
    if options.kind is None and not asks:
        described = "; ".join(f"{name}: {starter.title.rstrip('.').lower()}" for name, starter in STARTERS.items())
        raise ConfigurationError(f"Choose what to start from with --kind ({described}).")
    kind = options.kind or _asked_kind()
    starter, folder = STARTERS[kind], Path(options.folder)
    model, data, lora = options.model, options.data, options.lora
    problems = []
    if starter.model:
        if model is None and asks:
            model = _asked("Which model, by its name on the Hub or its folder?", starter.model)
        if data is None and asks:
            data = _asked("Which file has the data, a JSON object on each line? Nothing for a few samples", "")
    else:
        ineffective = {"--model": model, "--data": data, "--lora": lora}
        given = [name for name, value in ineffective.items() if value]
        problems += [f"{name} has no effect with --kind {kind}; leave it out." for name in given]
    if lora and kind == "text":
        problems.append("--lora has no effect with --kind text; leave it out, or choose --kind chat.")
    if kind == "chat" and asks and not lora:
        lora = _asked("Train adapters (LoRA) instead of all weights? yes or no", "yes").lower().startswith("y")
    if data and not Path(data).is_file():
        problems.append(f"You chose --data {data}, but there is no such file; check its name.")
    if problems:
        raise ConfigurationError(problems)
    model = model or starter.model
    return Choices(
        kind,
        folder,
        os.path.abspath(model) if model and Path(model).is_dir() else model,
        os.path.relpath(data, folder) if data else "",
        bool(lora),
    )


def _asked_kind() -> str:
    print_lines("What do you want to start from?", *(f"  {name:5} {each.title}" for name, each in STARTERS.items()))
    while (answer := _asked("One of these", "own")) not in STARTERS:
        print_lines(f"{answer!r} is none of them.")
    return answer


def _asked(question: str, usual: str) -> str:
    try:
        return input(f"{question}{f' [{usual}]' if usual else ''}: ").strip() or usual
    except EOFError:
        raise ConfigurationError("The questions were not answered; use options instead, such as --kind own.") from None
