"""From a file to a recipe, with everything that is wrong with it told at once."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import field, make_class

from hexloop.app.arguments import (
    Document,
    TrainingArguments,
    add_arguments,
    from_document,
    override,
    read_yaml,
    unknown_options,
)
from hexloop.app.recipe.part_reading import PartReader, Sort
from hexloop.app.recipe.parts import Part, Value
from hexloop.app.recipe.recipe import ARGUMENTS, PARTS, TRAINER, Recipe, is_trainer
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, problem

KEYS = (*PARTS, TRAINER, ARGUMENTS)


def read_recipe(
    path: str | Path,
    needed: Sequence[str] = ("model",),
    options: Namespace | None = None,
    unknown: Sequence[str] = (),
    check: Callable[[TrainingArguments, Collection[str]], Iterator[str]] = lambda arguments, given: iter(()),
) -> Recipe:
    """The recipe in a YAML file, whose folder is put first on `sys.path`.

    The code that it names is imported, and nothing of it called.

    needed: the parts that it must have. options: arguments of a command line, which count instead of the recipe's.
    unknown: words of that command line that are no argument. check: further problems with the arguments and the names
    of the parts that are given. Raises ConfigurationError with everything that is wrong, with lines.
    """
    document = _document(path)
    folder = str(Path(path).resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    reader = PartReader(document)
    trainer_class = _trainer_class(reader)
    kind = trainer_class.arguments_class if is_trainer(trainer_class) else TrainingArguments
    if options is not None:
        further, unknown = _further_options(kind, unknown)
        for given in (options, further):
            override(document, kind, given, at=(ARGUMENTS,))
    document.problems += unknown_options(kind, unknown)
    document.problems += _unknown_keys(document, kind)
    document.problems += _missing_parts(document, str(path), needed)
    parts = dict(_parts(reader))
    arguments = _arguments(document, kind)
    if arguments is not None:
        document.problems += _adapter_problems(arguments)
        document.problems += check(arguments, parts)
    if arguments is None or document.problems:
        cause = BaseExceptionGroup("What the recipe's modules raised", reader.causes) if reader.causes else None
        raise ConfigurationError(document.problems) from cause
    return Recipe(str(path), document, parts, arguments, trainer_class)


def _document(path: str | Path) -> Document:
    try:
        document = read_yaml(path)
    except ConfigurationError as error:
        if r"'\t'" in str(error):
            raise ConfigurationError([f"{error} YAML is indented with spaces, never with tabs."]) from None
        raise
    if not document.values:
        raise ConfigurationError([f"{path}: The recipe is empty; give it at least a model and a train_dataset."])
    if not isinstance(document.values, dict):
        raise ConfigurationError([f"{path}: A recipe is a mapping of keys to values; write it as 'model: ...'."])
    return document


def _further_options(kind: type[TrainingArguments], words: Sequence[str]) -> tuple[Namespace, list[str]]:
    """The options among `words` that set arguments of `kind` which not every run has, and the words left over."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    if kind is not TrainingArguments:
        add_arguments(parser, kind)
    return parser.parse_known_args(words)


def _unknown_keys(document: Document, kind: type[TrainingArguments]) -> Iterator[str]:
    for name, value in document.values.items():
        if name not in KEYS:
            yield document.located([(name,)], problem({name: value}, _unknown_key(str(name), kind)))


def _unknown_key(name: str, kind: type[TrainingArguments]) -> RefusalError:
    because = "a recipe has no such key"
    if name in kind.__dataclass_fields__:
        return RefusalError(because, f"{name} is an argument, so put it under {ARGUMENTS}")
    return RefusalError(because, did_you_mean(name, KEYS, f"the keys are {', '.join(KEYS)}"))


def _missing_parts(document: Document, source: str, needed: Sequence[str]) -> Iterator[str]:
    given = {name for name, value in document.values.items() if value is not None}
    if {"model", "model_init"} <= given:
        yield document.located(
            [("model",), ("model_init",)], "You gave model and model_init, and one is enough; remove the other."
        )
    if "model_init" in given:
        given.add("model")
    for name in needed:
        if name not in given:
            yield (
                f"{source}: {name} is missing; say what makes it, as in "
                f"'{name}: {{call: my_module.make_{name.removesuffix('_dataset')}}}'."
            )


def _parts(reader: PartReader) -> Iterator[tuple[str, Part]]:
    for name, value in reader.document.values.items():
        if name not in PARTS or value is None:
            continue
        if name == "callbacks":
            yield name, reader.parts((name,), PARTS[name])
        elif name == "eval_dataset":
            yield name, reader.part_or_parts_by_name((name,), PARTS[name])
        else:
            yield name, reader.part((name,), PARTS[name])


def _trainer_class(reader: PartReader) -> Any:
    from hexloop.app.trainer import Trainer

    document = reader.document
    value = document.at((TRAINER,))
    if value is None:
        return Trainer
    part = reader.part((TRAINER,), Sort.CLASS)
    found = part.value if isinstance(part, Value) else part
    if found is not None and not is_trainer(found):
        refusal = RefusalError("that is no subclass of hexloop.Trainer", "name a class that is derived from it")
        document.problems.append(document.located([(TRAINER,)], problem({TRAINER: value}, refusal)))
    return found


def _arguments(document: Document, kind: type[TrainingArguments]) -> TrainingArguments | None:
    """The arguments; None, and their problems put among the document's, where they cannot be made."""
    given = {ARGUMENTS: document.values.get(ARGUMENTS) or {}}
    holder = make_class("Recipe", {ARGUMENTS: field(type=kind)})
    try:
        made: TrainingArguments = getattr(from_document(holder, Document(given, document.places)), ARGUMENTS)
        return made
    except ConfigurationError as error:
        document.problems += error.problems
        return None


def _adapter_problems(arguments: TrainingArguments) -> Iterator[str]:
    """What no adapter at hand can do."""
    from hexloop.app.wiring.adapters import choose_adapters

    try:
        choose_adapters(arguments, {})
    except ConfigurationError as error:
        yield from error.problems
