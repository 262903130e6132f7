"""A recipe: the parts of a Trainer, read from a YAML file, with all of its problems reported at once."""

from __future__ import annotations

import inspect
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen, make_class

import hexloop
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.documents import Document, KeyPath, SourceLocation, from_document, read_yaml
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.arguments.options import unknown_options
from hexloop.app.arguments.parser import add_arguments, override
from hexloop.app.recipe.fine_tune import FINE_TUNE, MODEL, SECTION_PARTS, read_section
from hexloop.app.recipe.parts import PartKind, PartReader, RecipePart
from hexloop.app.recipe.search import SEARCH, SearchSection, place_of, read_search_section, with_values
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.parameter_rules import read_rules
from hexloop.domain.wording import RefusalError, did_you_mean, problem

PARTS = {
    "model": PartKind.OBJECT,
    "model_init": PartKind.CALLABLE,
    "processing_class": PartKind.OBJECT,
    "train_dataset": PartKind.OBJECT,
    "eval_dataset": PartKind.OBJECT,
    "test_dataset": PartKind.OBJECT,
    "data_collator": PartKind.FUNCTION,
    "compute_loss_func": PartKind.FUNCTION,
    "compute_metrics": PartKind.FUNCTION,
    "preprocess_logits_for_metrics": PartKind.FUNCTION,
    "optimizer_cls_and_kwargs": PartKind.OBJECT,
    "callbacks": PartKind.EITHER,
}
"""The keys of a recipe that are parameters of Trainer with the same name (test_dataset: of `Trainer.predict`)."""

ARGUMENTS = "arguments"
TRAINER = "trainer"
PARAM_GROUPS = "param_groups"  # also the name of the argument
KEYS = (*PARTS, TRAINER, FINE_TUNE, PARAM_GROUPS, ARGUMENTS, SEARCH)

KINDS = {**PARTS, **SECTION_PARTS}
"""What each part must be."""

DATASETS = ("train_dataset", "eval_dataset", "test_dataset")


@frozen
class Recipe:
    """The contents of a recipe, resolved and checked, from which a Trainer can be made.

    document: the file's values with their lines. parts: the parts to make, by the names in `PARTS`. trainer_class:
    Trainer, or the subclass that the recipe names. search: its section of that name, None if it has none.
    """

    document: Document
    parts: Mapping[str, RecipePart]
    arguments: TrainingArguments
    trainer_class: type[hexloop.Trainer]
    search: SearchSection | None = None

    def make_trainer(self, datasets: Collection[str]) -> hexloop.Trainer:
        """Return a Trainer with the given datasets ("train_dataset", "eval_dataset") and all other parts.

        Raises ConfigurationError if a part is unusable, and whatever the recipe's code raises, with a note that says
        which part was being made.
        """
        names = [name for name in KINDS if name not in DATASETS or name in datasets]
        made = {name: self.make(name) for name in names if name in self.parts}
        return self.trainer_class(args=self.arguments, **made)

    def make(self, name: str) -> Any:
        """Make the part `name`. The random generators are seeded first, so that parts do not affect each other."""
        from hexloop.app.assembly.adapters import choose_device

        choose_device(self.arguments).seed(self.arguments.seed)
        try:
            made = self.parts[name]()
        except Exception as error:
            error.add_note(
                self.document.located([self._path_of(name)], f"This was raised while {name} was being made.")
            )
            raise
        if made is None:
            self._refuse(name, "the result is None", "let what is called return the object")
        if KINDS[name] in (PartKind.FUNCTION, PartKind.CALLABLE) and not callable(made):
            self._refuse(
                name, f"the result of the call is a {type(made).__name__}, not a function", "let it return a function"
            )
        return made

    def _refuse(self, name: str, because: str, remedy: str) -> None:
        sentence = f"You chose {name}, but {because}; {remedy}."
        raise ConfigurationError(self.document.located([self._path_of(name)], sentence))

    def _path_of(self, name: str) -> KeyPath:
        """Return the keys that lead to a part."""
        return (FINE_TUNE, name) if self.document.at((FINE_TUNE, name)) is not None else (name,)


def read_recipe(
    path: str | Path,
    needed: Sequence[str] = ("model",),
    options: Namespace | None = None,
    unknown: Sequence[str] = (),
    check: Callable[[TrainingArguments, Collection[str]], Iterator[str]] = lambda arguments, given: iter(()),
    values: Mapping[str, Any] | None = None,
) -> Recipe:
    """Read the recipe in a YAML file, and put the file's folder first on `sys.path`.

    The code that the recipe names is imported but not called.

    needed: the parts that it must have. options: command-line arguments, which override the recipe's. unknown: those
    that the command line does not know. check: returns further problems, given the arguments and the names of the
    parts. values: those of a trial, by the names of the space of a search; they override everything else. Raises
    ConfigurationError with all problems and their lines.
    """
    document = _document(path)
    folder = str(Path(path).resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    reader = PartReader(document)
    trainer_class = _trainer_class(reader)
    kind = trainer_class.arguments_class if _is_trainer(trainer_class) else TrainingArguments
    section = dict(read_section(reader, ARGUMENTS))
    _read_groups(document)
    if options is not None:
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        if kind is not TrainingArguments:  # the command line does not know the arguments that only it has
            add_arguments(parser, kind)
        further, unknown = parser.parse_known_args(unknown)
        for given in (options, further):
            override(document, kind, given, at=(ARGUMENTS,))
    document = _of_trial(document, kind, values or {})
    reader.document = document
    own = getattr(options, "option_names", ())
    document.problems += unknown_options(unknown, [*own, *kind.__dataclass_fields__])
    document.problems += _unknown_keys(document, kind)
    document.problems += _missing_parts(document, str(path), needed)
    parts = {**dict(_parts(reader)), **section}
    if "model_init" in parts and issubclass(kind, SFTConfig):
        sentence = "You chose model_init, but fine-tuning starts from the weights of a model; give it as model."
        document.problems.append(document.located([("model_init",)], sentence))
    arguments = _arguments(document, kind)
    search = read_search_section(reader, ARGUMENTS, tuple(kind.__dataclass_fields__))
    if search is not None and arguments is not None and not values:
        document.problems += _values_of_arguments(document, kind, search)
    if arguments is not None:
        document.problems += _adapter_problems(arguments)
        document.problems += check(arguments, parts)
    if arguments is None or document.problems:
        cause = BaseExceptionGroup("Raised by the recipe's modules", reader.causes) if reader.causes else None
        raise ConfigurationError(document.problems) from cause
    return Recipe(document, parts, arguments, trainer_class, search)


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


def _unknown_keys(document: Document, kind: type[TrainingArguments]) -> Iterator[str]:
    for name, value in document.values.items():
        if name not in KEYS:
            if name in kind.__dataclass_fields__:
                remedy = f"{name} is an argument, so put it under {ARGUMENTS}"
            else:
                remedy = did_you_mean(str(name), KEYS, f"the keys are {', '.join(KEYS)}")
            refusal = RefusalError("recipes have no such key", remedy)
            yield document.located([(name,)], problem({name: value}, refusal))


def _missing_parts(document: Document, source: str, needed: Sequence[str]) -> Iterator[str]:
    given = {name for name, value in document.values.items() if value is not None}
    for name in sorted({"model", "model_init"} & given):
        if document.at((FINE_TUNE, MODEL)) is not None:
            sentence = f"{name} and {FINE_TUNE}.{MODEL} are both given; remove one of them."
            yield document.located([(name,), (FINE_TUNE, MODEL)], sentence)
    if document.at((FINE_TUNE, MODEL)) is not None:
        given.add("model")
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
    read = {"callbacks": reader.parts, "eval_dataset": reader.part_or_parts_by_name}
    for name, value in reader.document.values.items():
        if name in PARTS and value is not None:
            yield name, read.get(name, reader.part)((name,), PARTS[name])


def _trainer_class(reader: PartReader) -> Any:
    document = reader.document
    value = document.at((TRAINER,))
    fine_tunes = document.at((FINE_TUNE,)) is not None
    if value is None:
        return hexloop.SFTTrainer if fine_tunes else hexloop.Trainer
    found = reader.part((TRAINER,), PartKind.CLASS)() if isinstance(value, str) else value
    if found is not None and not _is_trainer(found):
        refusal = RefusalError("that is not a subclass of hexloop.Trainer", "name a class that is derived from it")
        document.problems.append(document.located([(TRAINER,)], problem({TRAINER: value}, refusal)))
    elif fine_tunes and found is not None and not issubclass(found, hexloop.SFTTrainer):
        because = f"the section {FINE_TUNE} is for hexloop.SFTTrainer"
        refusal = RefusalError(because, "name a class that is derived from it, or leave trainer out")
        document.problems.append(document.located([(TRAINER,), (FINE_TUNE,)], problem({TRAINER: value}, refusal)))
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


def _of_trial(document: Document, kind: type[TrainingArguments], values: Mapping[str, Any]) -> Document:
    """Return the document with the values of a trial. Raises ConfigurationError for a name that has no place in it."""
    known, places = tuple(kind.__dataclass_fields__), dict[KeyPath, Any]()
    for name, value in values.items():
        try:
            places[place_of(document, name, ARGUMENTS, known)] = value
        except RefusalError as refusal:
            raise ConfigurationError(problem({name: value}, refusal)) from refusal
    changed = with_values(document, places, SourceLocation("the trial"))
    changed.problems = document.problems
    return changed


def _read_groups(document: Document) -> None:
    """Put the section `param_groups` among the arguments, and check each rule by itself, with its line.

    Problems are added to the document's; an invalid section is then left out of the arguments.
    """
    section, there = document.at((PARAM_GROUPS,)), (ARGUMENTS, PARAM_GROUPS)
    source: KeyPath = there
    if section is not None:
        source = (PARAM_GROUPS,)
        if document.at(there) is not None:
            sentence = f"{PARAM_GROUPS} is given as a section and in {ARGUMENTS}; remove one of them."
            document.problems.append(document.located([source, there], sentence))
            return
        document.put(there, section, document.locations.get(source) or SourceLocation(PARAM_GROUPS))
    given = document.at(there)
    if given is None or isinstance(given, str):  # JSON of the command line has no lines
        return
    _, faults = read_rules(given)
    for path, refusal in faults:
        value = {".".join(map(str, (PARAM_GROUPS, *path))): document.at((*source, *path))}
        document.problems.append(document.located([(*source, *path)], problem(value, refusal)))
    if faults:
        document.put(there, None, document.locations.get(source) or SourceLocation(PARAM_GROUPS))


def _values_of_arguments(document: Document, kind: type[TrainingArguments], search: SearchSection) -> Iterator[str]:
    """Return what is wrong with values of the space, each tried on its own, as the recipe's arguments."""
    known = tuple(kind.__dataclass_fields__)
    for parameter in search.space:
        place = place_of(document, parameter.name, ARGUMENTS, known)
        path: KeyPath = (SEARCH, "space", parameter.name)
        source = document.locations.get(path) or SourceLocation(SEARCH)
        for value in parameter.examples() if place[0] == ARGUMENTS else ():
            trial = with_values(document, {place: value}, source)
            if _arguments(trial, kind) is None:
                yield from (each for each in trial.problems if each not in document.problems)
                break


def _adapter_problems(arguments: TrainingArguments) -> Iterator[str]:
    """Return what the available adapters cannot do."""
    from hexloop.app.assembly.adapters import choose_adapters

    try:
        choose_adapters(arguments, {})
    except ConfigurationError as error:
        yield from error.problems
