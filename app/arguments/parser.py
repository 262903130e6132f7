"""The command line: `HfArgumentParser` for scripts, and options that override the values of a document."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hexloop.app.arguments import options
from hexloop.app.arguments.base import legacy_names_of
from hexloop.app.arguments.declaration import annotations_of
from hexloop.app.arguments.documents import Document, KeyPath, SourceLocation, read_json, read_yaml
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.regular_files import read_file
from hexloop.domain.wording import Problem, RefusalError, did_you_mean, problem


def HfArg(  # noqa: N802 - transformers' name
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,
    default: Any = options.MISSING,
    default_factory: Any = options.MISSING,
    metadata: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Return a dataclass field with aliases of its option ("-e", ["--example", "-e"]) and a help text.

    Args:
        aliases: further spellings of the option.
        help: the text of `--help`.
        default: the value if the option is missing.
        default_factory: makes the value if the option is missing.
        metadata: kept in the field.
        **kwargs: passed to `dataclasses.field`.
    """
    given = {"aliases": aliases, "help": help}
    combined = {**(metadata or {}), **{name: value for name, value in given.items() if value is not None}}
    return dataclasses.field(metadata=combined, default=default, default_factory=default_factory, **kwargs)


class HfArgumentParser(ArgumentParser):
    """An argparse parser with an option for each field of one or several attrs classes or dataclasses.

    Options that are added to the parser are returned in a namespace. The help has a section for each class, titled by
    its `_argument_group_name` if it has one. Argument names of earlier releases of transformers are options for
    `TrainingArguments`, unless a class or an added option has the same name.

    Args:
        dataclass_types: the classes, which may include `TrainingArguments` and classes derived from it.
        **kwargs: passed to ArgumentParser.

    Raises:
        ConfigurationError: if two classes have a field of the same name, or a class has no fields.
    """

    def __init__(self, dataclass_types: type[Any] | Iterable[type[Any]] | None = None, **kwargs: Any) -> None:
        super().__init__(**{"formatter_class": ArgumentDefaultsHelpFormatter, **kwargs})
        types = [dataclass_types] if isinstance(dataclass_types, type) else list(dataclass_types or ())
        self.dataclass_types = types
        self._fields: list[list[options.Field]] = [options.fields_of(cls) for cls in types]
        self._is_complete = False
        _drop_discouraged_duplicates(self._fields)
        _refuse_duplicates(types, self._fields)
        taken = {field.name for fields in self._fields for field in fields}
        self._legacy_names = [[name for name in legacy_names_of(cls) if name not in taken] for cls in types]
        for cls in types:
            self._add_dataclass_arguments(cls)
        self._first_defaults = {field.name: self.get_default(field.name) for fields in self._fields for field in fields}

    def _add_dataclass_arguments(self, dtype: type[Any]) -> None:
        """Add an option for each field of a class, in a section of the help. The constructor calls it for each class.

        The values of a class that the constructor was not given are returned in a namespace.
        """
        owned = (fields for cls, fields in zip(self.dataclass_types, self._fields, strict=True) if cls is dtype)
        group = self.add_argument_group(getattr(dtype, "_argument_group_name", dtype.__name__))
        adds = self._parse_dataclass_field
        declared = {each.name: each for each in dataclasses.fields(dtype)} if dataclasses.is_dataclass(dtype) else {}
        for field in next(owned, None) or options.fields_of(dtype):
            if adds is HfArgumentParser._parse_dataclass_field or field.name not in declared:
                options.add_option(group, field)
            else:
                declared[field.name].type = field.kind
                adds(group, declared[field.name])

    @staticmethod
    def _parse_dataclass_field(parser: options.Parser, field: dataclasses.Field[Any]) -> None:
        """Add the option of a dataclass's field, whose type is resolved. If overridden, it is called for each field."""
        options.add_option(parser, options.field_of(field, field.type))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; also accept `--no_name` for each truth value, and legacy names.

        Args:
            args: the options; by default those of the program.
            namespace: the object that receives the values.
        """
        if not self._is_complete:
            self._is_complete = True
            self._add_yielding_options()
        return super().parse_known_args(args, namespace)

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Return an object of each class, then a namespace if options were added to the parser, then remaining strings.

        Args:
            args: the strings to parse; None for those of the command line.
            return_remaining_strings: whether to return unknown options instead of refusing them.
            look_for_args_file: whether to also read the file next to the script that has its name and the suffix
                ".args".
            args_filename: a file to read instead.
            args_file_flag: an option that names such a file, and may be repeated. Later strings take precedence: first
                those of the file, then those of the files that the option names, then the command line.

        Raises:
            SystemExit: as argparse does.
            ConfigurationError: with every problem of the options and values.
        """
        strings = sys.argv[1:] if args is None else args
        namespace, left = self.parse_known_args(
            _with_args_files(strings, look_for_args_file, args_filename, args_file_flag)
        )
        values = vars(namespace)
        known = [option.lstrip("-") for option in self._option_strings()]
        problems = [] if return_remaining_strings else options.unknown_options(left, known)
        made = self._make([self._take_changed(number, values) for number in range(len(self._fields))], problems)
        rest = (Namespace(**values),) if values else ()
        return (*made, *rest, left) if return_remaining_strings else (*made, *rest)

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return an object of each class from values by name, which are passed to the classes unchanged.

        Args:
            args: values by name.
            allow_extra_keys: ignore unknown keys.

        Raises:
            ConfigurationError: with every problem, which includes unknown keys unless `allow_extra_keys`.
        """
        return self._parse_document(Document(args), allow_extra_keys)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Call `parse_dict` with the contents of a JSON file.

        Args:
            json_file: the path of the file.
            allow_extra_keys: ignore unknown keys.

        Raises:
            ConfigurationError: with the lines of problems.
        """
        return self._parse_document(read_json(os.fspath(json_file)), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Call `parse_dict` with the contents of a YAML file.

        Values have the types of YAML 1.1, as in transformers: `no` is False, and `1e-4` text.

        Args:
            yaml_file: the path of the file.
            allow_extra_keys: ignore unknown keys.

        Raises:
            ConfigurationError: with the lines of problems.
        """
        return self._parse_document(read_yaml(os.fspath(yaml_file), older_schema=True), allow_extra_keys)

    def _parse_document(self, document: Document, allow_extra_keys: bool) -> tuple[Any, ...]:
        if not isinstance(document.values, Mapping):
            sentence = document.located([()], "The document is not a mapping; give values by their names.")
            raise ConfigurationError([*document.problems, Problem(sentence, kind=AttributeError)])
        left = dict(document.values)
        given = [self._take(number, left) for number in range(len(self._fields))]
        known = [field.name for fields in self._fields for field in fields]
        problems = []
        for name, value in ({} if allow_extra_keys else left).items():
            remedy = did_you_mean(str(name), known, "leave it out", similarity=0.7)
            problems.append(problem({str(name): value}, RefusalError("no class has a field of that name", remedy)))
        try:
            return self._make(given, problems)
        except ConfigurationError as error:
            found = []
            for each in error.problems:
                names, kind = getattr(each, "names", ()), getattr(each, "kind", None)
                found.append(Problem(document.located([(name,) for name in names], each), names, kind))
            raise ConfigurationError([*document.problems, *found]) from None

    def _make(self, given: list[dict[str, Any]], problems: Sequence[str]) -> tuple[Any, ...]:
        """Return an object of each class. Raises ConfigurationError with the problems of all of them."""
        problems, made = list(problems), []
        for cls, fields, values in zip(self.dataclass_types, self._fields, given, strict=True):
            if missing := [field.name for field in fields if field.required and field.name not in values]:
                needs = [f"{cls.__name__} needs {name}, which is missing; give it a value." for name in missing]
                problems += [Problem(each, kind=TypeError) for each in needs]
                continue
            try:
                made.append(cls(**values))
            except ConfigurationError as error:
                problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        return tuple(made)

    def _take_changed(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        """Remove a class's values from the parsed ones; drop defaults, which the class sets itself."""
        taken = self._take(number, values)
        required = {field.name for field in self._fields[number] if field.required}
        return {
            name: value
            for name, value in taken.items()
            if name in required or value is not self._first_defaults.get(name)
        }

    def _take(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        names = [*(field.name for field in self._fields[number]), *self._legacy_names[number]]
        return {name: values.pop(name) for name in names if name in values}

    def _add_yielding_options(self) -> None:
        """Add opposites and legacy names whose options neither a class nor the script uses otherwise."""
        for fields, legacy_names in zip(self._fields, self._legacy_names, strict=True):
            for field in fields:
                is_truth = options.option_type_of(field.kind).is_truth
                if is_truth and field.default is not True and self._is_free(f"no_{field.name}"):
                    options.add_opposite(
                        self, field.name, **({} if field.default is options.MISSING else {"default": field.default})
                    )
            legacy_names[:] = [name for name in legacy_names if self._is_free(name)]
            for name in legacy_names:
                options.add_legacy_option(self, name)

    def _is_free(self, name: str) -> bool:
        return not {*options.spellings(name)} & {*self._option_strings()}

    def _option_strings(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def _refuse_duplicates(types: list[type[Any]], fields: list[list[options.Field]]) -> None:
    owners: dict[str, list[str]] = {}
    for cls, own in zip(types, fields, strict=True):
        for field in own:
            owners.setdefault(field.name, []).append(cls.__name__)
    problems = [
        f"{' and '.join(names)} cannot be parsed together: each has a field {name}; rename one."
        for name, names in owners.items()
        if len(names) > 1
    ]
    if problems:
        raise ConfigurationError(problems)


def _drop_discouraged_duplicates(fields: list[list[options.Field]]) -> None:
    """Drop discouraged arguments of which another class has a field of the same name."""
    for own in fields:
        others = {field.name for each in fields if each is not own for field in each}
        dropped = others & DISCOURAGED_ARGUMENTS.keys()
        own[:] = [field for field in own if not (field.checked and field.name in dropped)]


def _with_args_files(
    strings: Sequence[str], next_to_script: bool, filename: str | os.PathLike[str] | None, flag: str | None
) -> list[str]:
    """Return the strings of the files that `parse_args_into_dataclasses` describes, then those of the command line."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    file = Path(filename) if filename else script.with_suffix(".args") if script.name else None
    read = _strings_of(file) if file and (filename or (next_to_script and file.exists())) else []
    left = list(strings)
    if flag:
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument(flag, dest="files", action="append", default=[])
        found, left = parser.parse_known_args(left)
        read += [string for named in found.files for string in _strings_of(Path(named))]
    return read + left


def _strings_of(file: Path) -> list[str]:
    try:
        return read_file(file, "recipe_bytes").decode("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The arguments file {str(file)!r} cannot be read ({error}); name a readable one."
        ) from error


def add_arguments(parser: ArgumentParser, cls: type[Any]) -> None:
    """Add an option for each field of the dataclass `cls`, with a section for each class that declares some.

    Values stay text, such as `--learning_rate 1e-4`, `--bf16`, `--no_bf16` or `--bf16 false`; `override` puts them into
    a document. Lists are several texts, mappings JSON.
    """
    for owner, fields in _fields_by_owner(cls):
        group = parser.add_argument_group(_heading(owner))
        for field in fields:
            options.add_text_option(group, field)
    for name in legacy_names_of(cls):
        options.add_legacy_option(parser, name)


def override(document: Document, cls: type[Any], chosen: Namespace, at: KeyPath = ()) -> None:
    """Put the options that were given into the mapping at the path `at` of a document."""
    kinds = annotations_of(cls)
    for name in [*cls.__dataclass_fields__, *legacy_names_of(cls)]:
        if hasattr(chosen, name):
            value = getattr(chosen, name)
            if kinds.get(name) == int | None and isinstance(value, str) and value.isdecimal():
                value = int(value)  # the argument itself may refuse texts, as from Python
            document.put((*at, name), value, SourceLocation(f"--{name}"))


def _fields_by_owner(cls: type[Any]) -> Iterator[tuple[type, list[options.Field]]]:
    left = {field.name: field for field in options.fields_of(cls)}
    for owner in reversed(cls.__mro__):
        fields = [left.pop(name) for name in inspect.get_annotations(owner) if name in left]
        if fields:
            yield owner, fields


def _heading(owner: type) -> str:
    text = owner.__doc__ or ""
    generated = text.startswith(f"{owner.__name__}(")  # by dataclass, for a class without a docstring
    return owner.__name__ if generated or not text else text.split("\n")[0].rstrip(".")
