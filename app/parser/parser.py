"""`HfArgumentParser`: an argparse parser whose options are the fields of classes, and which makes objects of them."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hexloop.app.arguments.documents import Document
from hexloop.app.arguments.group import Arguments
from hexloop.app.arguments.old_names import KEPT, OLD_NAMES
from hexloop.app.arguments.reading import read_json, read_yaml
from hexloop.app.arguments.translation import is_old
from hexloop.app.parser.fields import Field, fields_of
from hexloop.app.parser.files import words_of_files
from hexloop.app.parser.options import add_field, add_old_name, add_opposite, is_truth, spellings
from hexloop.app.parser.unknown import refusal_of_key, unknown_words
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import problem


class HfArgumentParser(ArgumentParser):
    """An argparse parser with an option for each field of some classes, which are attrs classes or dataclasses.

    dataclass_types: one class or several, `TrainingArguments` and classes derived from it among them. kwargs: as
    ArgumentParser takes them. Further options may be added; they come back in a namespace. The help has a section for
    each class, under the class's `_argument_group_name` if it has one. Names of arguments that older releases of the
    reference library had are taken for those of `TrainingArguments`, unless a class or an added option has them.

    Raises ConfigurationError where two classes have a field of one name, or one is no class with fields.
    """

    def __init__(self, dataclass_types: type[Any] | Iterable[type[Any]] | None = None, **kwargs: Any) -> None:
        super().__init__(**{"formatter_class": ArgumentDefaultsHelpFormatter, **kwargs})
        types = [dataclass_types] if isinstance(dataclass_types, type) else list(dataclass_types or ())
        self.dataclass_types = types
        self._fields: list[list[Field]] = [fields_of(cls) for cls in types]
        self._is_complete = False
        _leave_to_others(self._fields)
        _refuse_twins(types, self._fields)
        taken = {field.name for fields in self._fields for field in fields}
        self._old_names = [[name for name in _old_names(cls) if name not in taken] for cls in types]
        for cls, fields in zip(types, self._fields, strict=True):
            group = self.add_argument_group(getattr(cls, "_argument_group_name", cls.__name__))
            for field in fields:
                add_field(group, field)
        self._first_defaults = {field.name: self.get_default(field.name) for fields in self._fields for field in fields}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse; also `--no_name` for each truth value, and names of older releases."""
        if not self._is_complete:
            self._is_complete = True
            self._add_what_yields()
        return super().parse_known_args(args, namespace)

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """An object of each class, then a namespace if options were added to the parser, then what is left over.

        args: the words to read; those of the command line where it is None. return_remaining_strings: whether to give
        the words that no option takes, instead of refusing them. look_for_args_file: whether words are also read from
        the file beside the script that has its name and ends in ".args". args_filename: read that file instead.
        args_file_flag: an option that names such a file, and may come more than once. What comes later replaces what
        came before: words of the first file, of those that the option names, of the command line.

        Raises SystemExit as argparse does, and ConfigurationError with every problem of the words and the values.
        """
        words = sys.argv[1:] if args is None else args
        namespace, left = self.parse_known_args(
            words_of_files(words, look_for_args_file, args_filename, args_file_flag)
        )
        values = vars(namespace)
        problems = [] if return_remaining_strings else unknown_words(left, self._option_names())
        made = self._make([self._take(number, values) for number in range(len(self._fields))], problems)
        rest = (Namespace(**values),) if values else ()
        return (*made, *rest, left) if return_remaining_strings else (*made, *rest)

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """An object of each class out of values by name, which are passed to the classes as they are.

        Raises ConfigurationError with every problem; keys that no class has are one, unless `allow_extra_keys`.
        """
        return self._parse_document(Document(args), allow_extra_keys)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """`parse_dict` of what is in a JSON file. Raises ConfigurationError with the lines that are wrong."""
        return self._parse_document(read_json(os.fspath(json_file)), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """`parse_dict` of what is in a YAML file. Raises ConfigurationError with the lines that are wrong."""
        return self._parse_document(read_yaml(os.fspath(yaml_file)), allow_extra_keys)

    def _parse_document(self, document: Document, allow_extra_keys: bool) -> tuple[Any, ...]:
        if not isinstance(document.values, Mapping):
            raise ConfigurationError(
                [*document.problems, document.located([()], "The document is no mapping; give values by their names.")]
            )
        left = dict(document.values)
        given = [self._take_given(number, left) for number in range(len(self._fields))]
        known = [field.name for fields in self._fields for field in fields]
        unknown = {} if allow_extra_keys else left
        problems = [problem({name: value}, refusal_of_key(name, known)) for name, value in unknown.items()]
        try:
            return self._make(given, problems)
        except ConfigurationError as error:
            told = [document.located([(name,) for name in getattr(each, "names", ())], each) for each in error.problems]
            raise ConfigurationError([*document.problems, *told]) from None

    def _make(self, given: list[dict[str, Any]], problems: Sequence[str]) -> tuple[Any, ...]:
        """An object of each class; all that is wrong with any is told together."""
        problems, made = list(problems), []
        for cls, fields, values in zip(self.dataclass_types, self._fields, given, strict=True):
            if missing := [field.name for field in fields if field.required and field.name not in values]:
                problems += [f"{cls.__name__} needs {name}, which is missing; give it a value." for name in missing]
                continue
            try:
                made.append(cls(**values))
            except ConfigurationError as error:
                problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        return tuple(made)

    def _take(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        """Take what is a class's out of parsed values; what is still its default is left to the class to make."""
        taken = self._take_given(number, values)
        required = {field.name for field in self._fields[number] if field.required}
        return {
            name: value
            for name, value in taken.items()
            if name in required or value is not self._first_defaults.get(name)
        }

    def _take_given(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        names = [field.name for field in self._fields[number]]
        names += self._old_names[number]
        return {name: values.pop(name) for name in names if name in values}

    def _add_what_yields(self) -> None:
        """Add the options that give way to those of the same name that classes have or that were added."""
        for fields, old_names in zip(self._fields, self._old_names, strict=True):
            for field in fields:
                if is_truth(field) and field.default is not True and self._is_free(f"no_{field.name}"):
                    add_opposite(self, field)
            old_names[:] = [name for name in old_names if self._is_free(name)]
            for name in old_names:
                add_old_name(self, name)

    def _is_free(self, name: str) -> bool:
        return not {*spellings(f"--{name}")} & {*self._option_names()}

    def _option_names(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def _refuse_twins(types: list[type[Any]], fields: list[list[Field]]) -> None:
    count = Counter(field.name for each in fields for field in each)
    problems = []
    for name in (name for name, times in count.items() if times > 1):
        owners = [
            cls.__name__ for cls, own in zip(types, fields, strict=True) if any(name == each.name for each in own)
        ]
        problems.append(f"You chose to parse {' and '.join(owners)}, but each has a field {name}; rename one.")
    if problems:
        raise ConfigurationError(problems)


def _leave_to_others(fields: list[list[Field]]) -> None:
    """Where another class has an argument that only earlier releases had, it is that class's."""
    for own in fields:
        others = {field.name for each in fields if each is not own for field in each}
        own[:] = [field for field in own if not (field.checked and field.name in KEPT and field.name in others)]


def _old_names(cls: type[Any]) -> list[str]:
    return [name for name in OLD_NAMES if is_old(cls, name)] if issubclass(cls, Arguments) else []
