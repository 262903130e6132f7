"""The parser of the command line: reads options, words errors with what may have been meant, and shows the help.

The help of `train` names its many arguments by group. Words after `--help` choose what is shown in full.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from hexloop import __version__
from hexloop.app.command_line.help_texts import DESCRIPTIONS, EPILOGS, EXIT_CODES, TOP, USAGES
from hexloop.app.command_line.options import COMMANDS, OPTIONS, WEIGHTS, WITH_RECIPE, Command
from hexloop.app.printing import print_text
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean, enumeration

SYNONYMS = {
    **dict.fromkeys(("fit", "finetune", "fine-tune"), "train"),
    **dict.fromkeys(("resume", "continue"), "train RECIPE --resume"),
    **dict.fromkeys(("eval", "test", "validate"), "evaluate"),
    **dict.fromkeys(("infer", "inference"), "predict"),
    **dict.fromkeys(("sweep", "tune", "hpo"), "search"),
    **dict.fromkeys(("new", "create", "start", "quickstart"), "init"),
    **dict.fromkeys(("dashboard", "ui", "serve", "view", "watch"), "board"),
    **dict.fromkeys(("env", "info", "check"), "doctor"),
    **dict.fromkeys(("ls", "runs ls", "run list", "run ls"), "runs list"),
    **dict.fromkeys(("run show",), "runs show"),
    **dict.fromkeys(("compare", "runs compare", "run diff", "run compare"), "runs diff"),
    **dict.fromkeys(("checkpoints ls",), "checkpoints list"),
    **dict.fromkeys(("checkpoints compare",), "checkpoints diff"),
    **dict.fromkeys(("checkpoints rm", "checkpoints remove", "checkpoints delete"), "checkpoints prune"),
    **dict.fromkeys(("version",), "--version"),
    **dict.fromkeys(("help",), "--help"),
}
"""What other programs call a command. It is suggested, and not accepted."""

RECIPES = (".yaml", ".yml")


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line `argv`.

    In the result, `function` is the function to run, as "module:name", `command` the command, `argv` all of the
    arguments, `unknown` those that are not options of the command, and `option_names` the names of its own options,
    without dashes. Raises SystemExit, as argparse does, after printing the help or an error.
    """
    if problem := command_problem(argv):
        fail(problem)
    parser = parser_for(argv)
    options, unknown = parser.parse_known_args(argv)
    if options.command is None:
        parser.print_help()
        raise SystemExit(2)
    options.unknown, options.argv = unknown, list(argv)
    if "recipe" not in options and unknown:
        problems = list(_unknown(unknown, options.command_name, options.option_names))
        fail(str(ConfigurationError(problems)))
    if "recipe" in options and options.recipe is None:
        why = ", because an option before it may take it as its value" if len(argv) > 1 else ""
        fail(
            f"{options.command} needs a recipe; put it right after the command, as in 'hexloop {options.command} "
            f"recipe.yaml'{why}; 'hexloop init' writes one"
        )
    return options


def fail(message: str) -> NoReturn:
    """Print a usage error, and raise SystemExit with its exit code."""
    print_text(f"hexloop: {message}")
    raise SystemExit(2)


def command_problem(argv: Sequence[str]) -> str:
    """Return what is wrong with the name of the command in `argv`, with what may have been meant; "" if nothing is."""
    first = next(iter(argv), "")
    if first.startswith("-") and first not in ("-h", "--help", "--version"):
        names = ["help", "version"]
        meant = did_you_mean(first.lstrip("-"), names, "put options after the command", spell="--{}".format)
        return f"hexloop has no option {first}; {meant}"
    if problem := _no_such_use(first, next(iter(argv[1:]), "")):
        return problem
    commands, given = {command.name: command for command in COMMANDS}, ""
    for word in argv:
        if word.startswith("-"):
            return ""
        given = f"{given} {word}".strip()
        if given not in commands:
            return _no_command(given)
        if commands[given].function:
            return ""
    if not given:
        return ""
    names = [command.name for command in COMMANDS if command.name.startswith(f"{given} ")]
    within = enumeration((name.rpartition(" ")[2] for name in names), "or")
    return f"{given} needs a command: {within}; `hexloop {given} --help` describes them"


def _no_such_use(command: str, word: str) -> str:
    """Return what was meant by a command with the first word after it, if it is another command; "" otherwise."""
    if command in WITH_RECIPE and word.endswith(".py"):
        return f"{command} needs a recipe, and {word} is a script; did you mean hexloop run {word}?"
    if command in WITH_RECIPE and os.path.isdir(word):
        return f"{command} needs a recipe, and {word} is a folder; name the YAML file in it, as in {word}/recipe.yaml"
    if f"{command} {word}" in SYNONYMS and command == "run" and not os.path.exists(word):
        return f"there is no command {command} {word}; did you mean hexloop {SYNONYMS[f'{command} {word}']}?"
    return ""


def _no_command(given: str) -> str:
    group, _, word = given.rpartition(" ")
    if not group and PurePath(word).suffix in (*RECIPES, ".py"):
        verb = "run" if word.endswith(".py") else "train"
        return f"there is no command {word}; did you mean hexloop {verb} {word}?"
    siblings = [command.name for command in COMMANDS if command.name.startswith(f"{group} " if group else "")]
    within = [name for name in siblings if not group and name.endswith(f" {word}")]
    otherwise = f"`hexloop {group} --help`".replace("  ", " ") + " lists the commands"
    if given in SYNONYMS:
        remedy = f"did you mean hexloop {SYNONYMS[given]}?"
    elif within:
        remedy = f"did you mean {enumeration((f'hexloop {name}' for name in within), 'or')}?"
    else:
        remedy = did_you_mean(given, siblings, otherwise, spell="hexloop {}".format)
    return f"there is no command {given}; {remedy}"


def _unknown(words: Sequence[str], command: str, known: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each word that is not an option of a command, and for stray values."""
    otherwise = f"`hexloop {command} --help` lists its options"
    if command == "launch":
        otherwise = "arguments of the recipe or script follow its name"
    for word in words:
        if word.startswith("-"):
            option = word.partition("=")[0]
            meant = did_you_mean(option.lstrip("-"), known, otherwise, spell="--{}".format)
            yield f"{command} has no option {option}; {meant}"
        elif len(words) == 1 or word == words[0]:  # otherwise it may be the value of the option before it
            yield f"{command} does not take {word!r}; {otherwise}"


class PlainHelp(argparse.RawDescriptionHelpFormatter):
    """Help with descriptions and examples printed verbatim, and the value of an option once for all of its names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class ShowHelp(argparse.Action):
    """Prints the help, or what is about the words after the option, and ends."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Print the help of `parser`."""
        assert isinstance(parser, CommandParser)
        words = [word for word in values if PurePath(word).suffix not in RECIPES]
        print(parser.help_about(words) if words else parser.format_help(), end="", file=sys.stdout)
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, of a group of commands, or of all.

    command: the name of the command or group; "" for all. argument_groups: groups of training arguments, of
    which the help shows only the titles.
    """

    def __init__(self, prog: str, *, command: str = "", **settings: Any) -> None:
        super().__init__(prog, formatter_class=PlainHelp, allow_abbrev=False, add_help=False, **settings)
        self.command = command
        self.argument_groups: list[Any] = []
        metavar, default = "WORD", argparse.SUPPRESS
        text = "show this help; with words after it, only what is about them"
        self.add_argument("-h", "--help", action=ShowHelp, nargs="*", metavar=metavar, default=default, help=text)

    def error(self, message: str) -> NoReturn:
        """Print what argparse found, without the usage."""
        fail(f"{self.prog.removeprefix('hexloop ')}: {message}; see `{self.prog} --help`")

    def format_help(self) -> str:
        """Return the help, in which groups of training arguments are only named."""
        shown = [group for group in self._action_groups if group not in self.argument_groups]
        return self._page([(group.title, group._group_actions) for group in shown], self._list_of_groups())

    def help_about(self, words: Sequence[str]) -> str:
        """Return the help of what is about all of the words: a command, groups of options, and options.

        "all" stands for everything. Ends with a usage error if nothing is.
        """
        if not self.command or self._subparsers is not None:
            return self._commands_about(words)
        groups = [
            (str(group.title), [action for action in group._group_actions if action.help != argparse.SUPPRESS])
            for group in self._action_groups
        ]
        if list(words) == ["all"]:
            return self._page(groups)
        patterns = [re.compile(rf"(\b|_){re.escape(_stem(word))}", re.IGNORECASE) for word in words]
        named, mentioned = [], []
        for title, actions in groups:
            chosen = [action for action in actions if _is_about(words, patterns, action, title)]
            named.append((title, chosen))
            others = [action for action in actions if action not in chosen]
            mentioned.append((title, [action for action in others if _is_about(words, patterns, action, title, True)]))
        if not any(actions for _, actions in named):
            named, mentioned = mentioned, []
        if not any(actions for _, actions in named):
            fail(f"no option of {self.command} is about {' '.join(words)}; see `{self.prog} --help`")
        further = ", ".join(action.option_strings[0] for _, actions in mentioned for action in actions)
        note = f"Also about {' '.join(words)}: {further}" if further else ""
        formatter = self._get_formatter()
        _add_groups(formatter, named)
        formatter.add_text(_wrapped(note))
        return formatter.format_help()

    def _page(self, groups: Sequence[tuple[str | None, Sequence[argparse.Action]]], note: str = "") -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        _add_groups(formatter, groups)
        formatter.add_text(note)
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _list_of_groups(self) -> str:
        if self.command != "train" or not self.argument_groups:
            return ""
        rows = []
        for group in self.argument_groups:
            names = [each.option_strings[0] for each in group._group_actions if each.help != argparse.SUPPRESS]
            rows.append(f"  {len(names):3}  {group.title}")
        lines = [
            "training arguments, how many of each group:",
            *rows,
            "",
            "`hexloop train --help optimizer` shows a group, or what is about a word;",
            "`hexloop train --help all` shows everything.",
        ]
        return "\n".join(lines)

    def _commands_about(self, words: Sequence[str]) -> str:
        """Return the help of the command of that name, or the commands that are about the words."""
        given = f"{self.command} {' '.join(words)}".strip()
        if any(command.name == given for command in COMMANDS):
            return parsers_for(given.split())[given].format_help()
        within = [each for each in COMMANDS if each.name.startswith(self.command)]
        if list(words) != ["all"]:
            patterns = [re.compile(rf"\b{re.escape(_stem(word))}", re.IGNORECASE) for word in words]
            within = [each for each in within if all(one.search(f"{each.name} {each.help}") for one in patterns)]
        if not within:
            fail(f"no command is about {' '.join(words)}; `{self.prog} --help` lists all")
        width = max(len(each.name) for each in within)
        return "".join(f"  hexloop {each.name.ljust(width)}  {each.help}\n" for each in within)


def _is_about(
    words: Sequence[str],
    patterns: Sequence[re.Pattern[str]],
    action: argparse.Action,
    title: str,
    with_help: bool = False,
) -> bool:
    """Return whether each word is in the name of an option, in its group's title or, with_help, in its help."""
    from hexloop.app.arguments.base import SHORT_FORMS

    texts = [title, *(name.lstrip("-").replace("-", "_") for name in action.option_strings)]
    texts += [action.help or ""] * with_help
    return all(
        SHORT_FORMS.get(word.lower().replace("-", "_")) == action.dest or any(map(pattern.search, texts))
        for word, pattern in zip(words, patterns, strict=True)
    )


def _stem(word: str) -> str:
    """Return a word without its plural, as options are named: with underscores, and without dashes in front."""
    word = word.lstrip("-").replace("-", "_")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _add_groups(
    formatter: argparse.HelpFormatter, groups: Sequence[tuple[str | None, Sequence[argparse.Action]]]
) -> None:
    for title, actions in groups:
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()


def _wrapped(text: str) -> str:
    import shutil
    import textwrap

    return "\n".join(textwrap.wrap(text, shutil.get_terminal_size().columns - 2, break_on_hyphens=False))


def parser_for(argv: Sequence[str]) -> CommandParser:
    """Return the parser for `argv`. The many training arguments are only added to the command that is used."""
    return parsers_for(argv)[""]


def parsers_for(argv: Sequence[str]) -> dict[str, CommandParser]:
    """Return the parsers of all commands and groups by their names, "" for all; see `parser_for`."""
    top = CommandParser("hexloop", description=TOP, epilog=EXIT_CODES)
    top.set_defaults(traceback=False, limit=[])
    top.add_argument("--version", action="version", version=f"hexloop {__version__}", help="print the version and exit")
    made = {"": top}
    groups: dict[str, Any] = {"": top.add_subparsers(dest="command", metavar="COMMAND", title="commands")}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        parser = groups[group].add_parser(
            name,
            command=command.name,
            help=command.help,
            usage=USAGES.get(command.name),
            description=DESCRIPTIONS.get(command.name, f"{command.help[0].upper()}{command.help[1:]}."),
            epilog=EPILOGS.get(command.name),
        )
        made[command.name] = parser
        _fill(parser, command)
        if not command.function:
            groups[name] = parser.add_subparsers(
                dest=f"{name}_command", metavar="COMMAND", title="commands", required=True
            )
        elif command.name in WITH_RECIPE and command.name in argv:
            from hexloop.app.arguments import TrainingArguments
            from hexloop.app.arguments.parser import add_arguments

            before = len(parser._action_groups)
            add_arguments(parser, TrainingArguments)
            parser.argument_groups = parser._action_groups[before:]
    return made


def _fill(parser: CommandParser, command: Command) -> None:
    """Add what a command sets and its own options."""
    _add_options(parser, command.name)
    function = f"hexloop.app.command_line.{command.function}" if command.function else None
    names = [name.lstrip("-") for action in parser._actions for name in action.option_strings]
    parser.set_defaults(fail=fail, function=function, command_name=command.name, option_names=names)


def _add_options(parser: CommandParser, command: str) -> None:
    """Add the options of a command."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in OPTIONS:
        if command in option.commands:
            if option.group not in groups:
                is_exclusive = option.group == WEIGHTS
                groups[option.group] = (
                    parser.add_mutually_exclusive_group() if is_exclusive else parser.add_argument_group(option.group)
                )
            value = {"metavar": option.metavar} if option.metavar else {"action": "store_true"}
            groups[option.group].add_argument(option.name, help=option.help, **{**value, **option.settings})
