"""Read a recipe from a YAML file and report all of its problems at once."""

from __future__ import annotations

import inspect
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import field, make_class

import hexloop
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.documents import Document, from_document, read_yaml
from hexloop.app.arguments.options import unknown_options
from hexloop.app.arguments.parser import add_arguments, override
from hexloop.app.recipe.parts import PartKind, PartReader, RecipePart, Value
from hexloop.app.recipe.recipe import PARTS, Recipe
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, problem

ARGUMENTS = "arguments"
TRAINER = "trainer"
KEYS = (*PARTS, TRAINER, ARGUMENTS)


def read_recipe(
    path: str | Path,
    needed: Sequence[str] = ("model",),
    options: Namespace | None = None,
    unknown: Sequence[str] = (),
    check: Callable[[TrainingArguments, Collection[str]], Iterator[str]] = lambda arguments, given: iter(()),
) -> Recipe:
    """Read the recipe in a YAML file, and put the file's folder first on `sys.path`.

    The code that the recipe names is imported but not called.

    needed: the parts that it must have. options: command-line arguments, which override the recipe's. unknown: those
    that the command line does not know. check: returns further problems, given the arguments and the names of the
    parts. Raises ConfigurationError with all problems and their lines.
    """
    document = _document(path)
    folder = str(Path(path).resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    reader = PartReader(document)
    trainer_class = _trainer_class(reader)
    kind = trainer_class.arguments_class if _is_trainer(trainer_class) else TrainingArguments
    if options is not None:
        further, unknown = _further_options(kind, unknown)
        for given in (options, further):
            override(document, kind, given, at=(ARGUMENTS,))
    document.problems += unknown_options(unknown, kind.__dataclass_fields__)
    document.problems += _unknown_keys(document, kind)
    document.problems += _missing_parts(document, str(path), needed)
    parts = dict(_parts(reader))
    arguments = _arguments(document, kind)
    if arguments is not None:
        document.problems += _adapter_problems(arguments)
        document.problems += check(arguments, parts)
    if arguments is None or document.problems:
        cause = BaseExceptionGroup("Raised by the recipe's modules", reader.causes) if reader.causes else None
        raise ConfigurationError(document.problems) from cause
    return Recipe(str(path), document, parts, arguments, trainer_class)


def _document(path: str | Path) -> Document:
    try:
        document = read_yaml(path)
    except ConfigurationError as error:
        if r"'\t'" in str(error):
            raise ConfigurationError(f"{error} YAML is indented with spaces, not with tabs.") from None
        raise
    if not document.values:
        raise ConfigurationError(f"{path}: The recipe is empty; give it at least a model and a train_dataset.")
    if not isinstance(document.values, dict):
        raise ConfigurationError(f"{path}: The recipe is not a mapping of keys to values; write 'model: ...'.")
    return document


def _further_options(kind: type[TrainingArguments], argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Parse the options in `argv` for arguments that only `kind` has; return them and the rest."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    if kind is not TrainingArguments:
        add_arguments(parser, kind)
    return parser.parse_known_args(argv)


def _unknown_keys(document: Document, kind: type[TrainingArguments]) -> Iterator[str]:
    for name, value in document.values.items():
        if name not in KEYS:
            yield document.located([(name,)], problem({name: value}, _unknown_key(str(name), kind)))


def _unknown_key(name: str, kind: type[TrainingArguments]) -> RefusalError:
    because = "recipes have no such key"
    if name in kind.__dataclass_fields__:
        return RefusalError(because, f"{name} is an argument, so put it under {ARGUMENTS}")
    return RefusalError(because, did_you_mean(name, KEYS, f"the keys are {', '.join(KEYS)}"))


def _missing_parts(document: Document, source: str, needed: Sequence[str]) -> Iterator[str]:
    given = {name for name, value in document.values.items() if value is not None}
    if {"model", "model_init"} <= given:
        yield document.located(
            [("model",), ("model_init",)], "model and model_init are both given; remove one of them."
        )
    if "model_init" in given:
        given.add("model")
    for name in needed:
        if name not in given:
            yield (
                f"{source}: {name} is missing; add it, as in "
                f"'{name}: {{call: my_module.make_{name.removesuffix('_dataset')}}}'."
            )


def _parts(reader: PartReader) -> Iterator[tuple[str, RecipePart]]:
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
    document = reader.document
    value = document.at((TRAINER,))
    if value is None:
        return hexloop.Trainer
    part = reader.part((TRAINER,), PartKind.CLASS)
    found = part.value if isinstance(part, Value) else part
    if found is not None and not _is_trainer(found):
        refusal = RefusalError("that is not a subclass of hexloop.Trainer", "name a class that is derived from it")
        document.problems.append(document.located([(TRAINER,)], problem({TRAINER: value}, refusal)))
    return found


def _is_trainer(candidate: object) -> bool:
    return inspect.isclass(candidate) and issubclass(candidate, hexloop.Trainer)


def _arguments(document: Document, kind: type[TrainingArguments]) -> TrainingArguments | None:
    """Return the arguments; None, with problems added to the document's, if they are invalid."""
    given = {ARGUMENTS: document.values.get(ARGUMENTS) or {}}
    holder = make_class("Recipe", {ARGUMENTS: field(type=kind)})
    try:
        made: TrainingArguments = getattr(from_document(holder, Document(given, document.locations)), ARGUMENTS)
        return made
    except ConfigurationError as error:
        document.problems += error.problems
        return None


def _adapter_problems(arguments: TrainingArguments) -> Iterator[str]:
    """Return what the available adapters cannot do."""
    from hexloop.app.wiring.adapters import choose_adapters

    try:
        choose_adapters(arguments, {})
    except ConfigurationError as error:
        yield from error.problems
