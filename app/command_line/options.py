"""The tables of all commands and of their options, from which the parser is made, and commands as text."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import Factory, frozen

from hexloop.app.run.command import LAUNCHED_AS

RESUME = ("resume", "resume_from_checkpoint")

AUTO = "auto"
"""The value of `--resume` that resumes if there is a checkpoint, and starts a new run otherwise."""


@frozen
class Command:
    """A row of the table of commands.

    name: with the group that the command is in. function: what runs it, as "module:name"; "" for a group of commands.
    """

    name: str
    function: str
    help: str


COMMANDS = (
    Command("init", "init:run", "write a recipe and a script to start from"),
    Command("train", "training:run", "train what a recipe describes"),
    Command("evaluate", "evaluating:evaluate", "evaluate a checkpoint on the recipe's eval_dataset"),
    Command("predict", "evaluating:predict", "write a checkpoint's predictions to a file"),
    Command("search", "search:run", "train what a recipe describes with different values, and compare"),
    Command("run", "run:run", "run a script or module written for transformers, unmodified"),
    Command("checkpoints", "", "list, verify, sign, compare, prune and convert checkpoints"),
    Command("checkpoints list", "checkpoints.inspecting:list_checkpoints",
            "list the checkpoints in a folder, good and bad"),
    Command("checkpoints verify", "checkpoints.inspecting:verify",
            "read checkpoints and report what is wrong with each"),
    Command("checkpoints sign", "checkpoints.changing:sign", "sign checkpoints with a key, after verifying them"),
    Command("checkpoints show", "checkpoints.inspecting:show", "show the contents of a checkpoint"),
    Command("checkpoints diff", "checkpoints.diff:run",
            "report the first tensor or field that differs between two checkpoints"),
    Command("checkpoints prune", "checkpoints.changing:prune", "remove a run's older checkpoints"),
    Command("checkpoints consolidate", "checkpoints.changing:consolidate",
            "write a checkpoint's weights as one file, with everything that from_pretrained needs"),
    Command("checkpoints import", "checkpoints.changing:import_",
            "convert a checkpoint of transformers' Trainer to hexloop's"),
    Command("checkpoints export", "checkpoints.changing:export",
            "write a checkpoint from which transformers' Trainer can resume"),
    Command("checkpoints merge", "checkpoints.changing:merge",
            "merge the adapters of a checkpoint into their base, and write the whole model"),
    Command("launch", "launch:run", "run a recipe or a script in several processes"),
    Command("runs", "", "list and show runs, and find where two diverge"),
    Command("runs list", "run_listing:list_runs", "list the runs in a folder: state, progress, last logged values"),
    Command("runs show", "run_listing:show", "show what is known about a run"),
    Command("runs diff", "runs:diff", "find the step at which two runs diverge, and what diverges first"),
    Command("outbox", "", "show and finish what runs have not published or logged yet"),
    Command("outbox list", "outbox:list_intents", "list what is left, and why"),
    Command("outbox flush", "outbox:flush", "publish what is left, and deliver logs to trackers"),
    Command("outbox retry", "outbox:retry", "do the same, also with what the hub has refused"),
    Command("outbox drop", "outbox:drop", "remove entries without publishing them; with --all also logs"),
    Command("report", "pages:report", "write one page that shows runs: curves, checkpoints, restarts, arguments"),
    Command("board", "pages:board", "show the runs of a folder in a browser, while they train"),
    Command("doctor", "doctor:run", "report what this machine supports, and what to install for the rest"),
    Command("why", "why:run", "find the first step, tensor and sample at which two runs differ"),
    Command("completion", "completion:run", "print the script that lets a shell complete commands and arguments"),
)  # fmt: skip
"""All commands, in the order of the help."""

ALL = [command.name for command in COMMANDS]
LIMITED = [command.name for command in COMMANDS if command.function and command.name != "launch"]
"""The commands with `--limit`, which `launch` passes on with the arguments of the recipe."""
WITH_RECIPE, WITH_WEIGHTS = ["train", "evaluate", "predict", "search"], ["evaluate", "predict"]
FLUSHING = ["outbox flush", "outbox retry"]
LIST, VERIFY, SIGN, SHOW, DIFF, PRUNE, CONSOLIDATE, IMPORT, EXPORT, MERGE = (
    name for name in ALL if name.startswith("checkpoints ")
)

WEIGHTS = "weights"
"""The group of options that exclude each other."""
PROCESSES, MACHINES = "processes", "several machines; run the command on each of them"


@frozen
class Option:
    """A row of the table of options.

    commands: that have it. name: with dashes, or without for a positional argument. metavar: of the value; "" for an
    option without one. settings: further arguments of `ArgumentParser.add_argument`. group: its heading in the help.
    """

    commands: Sequence[str]
    name: str
    metavar: str
    help: str
    settings: Mapping[str, Any] = Factory(dict)
    group: str = ""


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it takes a whole number above 0, not {text!r}")
    return int(text)


def _steps(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"it takes a whole number, 0 or more, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"a port is a whole number below 65536, not {text!r}")
    return int(text)


REST = {"nargs": argparse.REMAINDER}
SEVERAL = {"action": "append", "default": []}
STATES = ("running", "paused", "finished", "stopped", "failed", "lost", "unknown")
OF_SEVERAL = "FOLDER@NAME selects the run NAME if it contains several (default: the last one)"

OPTIONS = (
    Option(ALL, "--traceback", "", "print the traceback of every error, including those that hexloop raises on purpose",
           {"default": argparse.SUPPRESS}),
    Option(LIMITED, "--limit", "NAME=VALUE",
           "change a limit on what is read, such as document_bytes=256MiB; docs/limits.md lists them; repeatable",
           {"action": "append", "default": argparse.SUPPRESS}),

    Option(WITH_RECIPE, "recipe", "RECIPE", "the YAML file that describes the training run", {"nargs": "?"}),
    Option(["train"], "--resume", "CHECKPOINT",
           "resume from this checkpoint's folder; without a folder, from the newest good checkpoint in output_dir; "
           "auto: from that one if there is any, unless the run is finished", {"nargs": "?", "const": True}),
    Option(["init"], "folder", "FOLDER", "the folder to write to (default: this one)", {"nargs": "?", "default": "."}),
    Option(["init"], "--kind", "{own,text,chat}",
           "own: a model and data of your own; text: classify texts with a model of transformers; chat: fine-tune a "
           "language model on conversations; without it, questions are asked", {"choices": ["own", "text", "chat"]}),
    Option(["init"], "--model", "MODEL", "the model to fine-tune: its name on the Hub, or its folder"),
    Option(["init"], "--data", "FILE", "the data: a JSON object on each line (default: a few samples are written)"),
    Option(["init"], "--lora", "", "with --kind chat, train adapters instead of all weights"),
    Option(["train"], "--check", "", "look for mistakes in the recipe and its arguments, and train nothing"),
    Option(["train"], "--report", "",
           "at the end, also write report.html to output_dir: a page that shows the run, as `hexloop report` does"),
    Option(["train", *WITH_WEIGHTS], "--trial", "FOLDER",
           "use the values of a trial of a search: its folder, or that of the search for its best trial; without "
           "--output_dir, evaluate and predict use the trial's checkpoints"),
    Option(["search"], "--resume", "",
           "continue the search in output_dir, at the trials that it was in; it may have other numbers of trials and "
           "processes than before"),
    Option(["search"], "--trials", "N", "how many trials the search has (default: that of the recipe, or 20)",
           {"type": _count}),
    Option(["search"], "--parallel", "N", "train so many trials at a time, each in a process (default: 1)",
           {"type": _count, "default": 1}),
    Option(["search"], "--check", "", "check the recipe and its search, print what would be tried, and train nothing"),
    Option(["search"], "--report", "", "at the end, also write report.html to output_dir, as `hexloop report` does"),
    Option(WITH_WEIGHTS, "--checkpoint", "FOLDER",
           "the checkpoint whose weights to use (default: the last one of the newest run in output_dir: its best "
           "if load_best_model_at_end is set, else its newest)", group=WEIGHTS),
    Option(WITH_WEIGHTS, "--no-checkpoint", "", "use the model as the recipe creates it, which may load weights itself",
           {"dest": "as_made"}, WEIGHTS),
    Option(["evaluate"], "--output", "FILE", "JSON file for the metrics (default: eval_results.json in output_dir)"),
    Option(["predict"], "--output", "FILE", "a file that ends in .npz or .jsonl", {"required": True}),

    Option(["run"], "-m", "", "PROGRAM is the name of a module, as in `python -m`", {"dest": "is_module"}),
    Option(["run"], "--check", "",
           "run it with both libraries, each in a process of its own, and report the first difference"),
    Option(["run"], "--reproduce", "{transformers}",
           "the argument `reproduce` where the program does not set it; transformers: the same random draws and sums",
           {"choices": ["transformers"]}),
    Option(["train", "run"], "--dry-run", "",
           "train nothing: print which memory, time and disk the run will need, from a step without memory and a few "
           "measured ones; exit with 1 if it will not fit"),
    Option(["train", "run"], "--measure", "N", "with --dry-run, how many steps are measured (default: 10); 0: none",
           {"type": _steps, "default": 10}),
    Option(["run"], "program", "PROGRAM", "the path of a script, or with -m the name of a module"),
    Option(["run"], "program_arguments", "argument", "arguments of the program", REST),

    # Values of `launch` are parsed later, so that all problems can be reported at once.
    Option(["launch"], "--processes", "N", "number on this machine (default: one per GPU)", group=PROCESSES),
    Option(["launch"], "--tpu", "N", "number of TPU devices of this machine, with a process for each", group=PROCESSES),
    Option(["launch"], "--restarts", "K", "how often all are started again when one dies (default: 0)",
           {"default": "0"}, PROCESSES),
    Option(["launch"], "--grace", "SECONDS",
           "time to save and exit after Ctrl-C or SIGTERM, before they are killed (default: 30)",
           {"default": "30"}, PROCESSES),
    Option(["launch"], "--log-folder", "DIR", "also write the output of each process to DIR/rank-<rank>.log",
           group=PROCESSES),
    Option(["launch"], "--nodes", "M",
           "number of machines; MIN:MAX if some may join or leave while the others continue (default: 1)",
           {"default": "1"}, MACHINES),
    Option(["launch"], "--rendezvous", "HOST:PORT", "where they connect: a free port on one of them", group=MACHINES),
    Option(["launch"], "--node-rank", "R",
           "the index of this machine; 0 must be at HOST and has rank 0 (default: in the order of arrival)",
           group=MACHINES),
    Option(["launch"], "--address", "HOST", "the address of this machine for the others (default: its host name)",
           group=MACHINES),
    Option(["launch"], "--join-timeout", "SECONDS", "how long to wait for the others (default: 600)",
           {"default": "600"}, MACHINES),
    Option(["launch"], "program", "RECIPE-or-SCRIPT.py", "the recipe, or a file that ends in .py"),
    Option(["launch"], "program_arguments", "argument", "arguments of the recipe or script", REST),

    Option([LIST, PRUNE], "folder", "FOLDER", "the folder or URL that contains the checkpoints"),
    Option([IMPORT], "folder", "FOLDER", "the checkpoint's folder"),
    Option([VERIFY, SIGN], "paths", "FOLDER|CHECKPOINT", "folders of checkpoints, checkpoints, or their URLs",
           {"nargs": "+"}),
    Option([SHOW], "checkpoint", "CHECKPOINT|FOLDER",
           "the checkpoint's folder or URL; the newest checkpoint of a run's folder"),
    Option([CONSOLIDATE], "checkpoint", "CHECKPOINT", "the checkpoint's folder or URL"),
    Option([EXPORT], "checkpoint", "CHECKPOINT", "the checkpoint's folder"),
    Option([MERGE], "checkpoint", "CHECKPOINT", "the checkpoint's folder or URL"),
    Option([DIFF], "one", "CHECKPOINT", "a checkpoint's folder or URL"),
    Option([DIFF], "other", "CHECKPOINT", "a checkpoint's folder or URL"),
    Option([LIST], "--quick", "", "read manifests only: verify nothing, show no metrics"),
    Option([SHOW], "--tensors", "", "list the tensors of each file, with type and shape"),
    Option([DIFF], "--all", "", "list all differences, and count what was compared"),
    Option([DIFF], "--strict", "", "also compare values that only identify a run"),
    Option([PRUNE], "--keep", "N", "how many checkpoints to keep", {"type": _count}),
    Option([PRUNE], "--keep-best", "", "also keep the one with the best metric"),
    Option([PRUNE], "--leftovers", "", "remove unfinished folders that the run left behind"),
    Option([PRUNE], "--replaced", "", "remove checkpoints of earlier runs whose names later ones have taken"),
    Option([PRUNE], "--run", "NAME", "the run, or the start of its name; required if there are several"),
    Option([PRUNE], "--dry-run", "", "only print what would be removed"),
    Option([CONSOLIDATE], "--output", "FOLDER", "the folder or URL to write (default: CHECKPOINT-consolidated)"),
    Option([IMPORT, EXPORT], "--to", "OUTPUT_DIR", "the folder to write checkpoint-<step> to", {"required": True}),
    Option([IMPORT], "--gradient-accumulation-steps", "N", "that of the run (default: 1)", {"type": int, "default": 1}),
    Option([IMPORT], "--train-batch-size", "N", "samples per micro-batch, if no file says it", {"type": int}),
    Option([IMPORT], "--processes", "N", "the run's number of processes", {"type": int, "default": 1}),
    Option([IMPORT], "--seed", "SEED", "the run's seed (default: 42)", {"type": int, "default": 42}),
    Option([IMPORT], "--data-seed", "DATA_SEED", "the run's data_seed (default: its seed)", {"type": int}),
    Option([MERGE], "--to", "FOLDER", "the folder to write the model to", {"required": True}),
    Option([MERGE], "--base", "MODEL", "the folder or name of the base (default: the one that the checkpoint names)"),
    Option([MERGE], "--adapter", "NAME", "an adapter to merge, if there are several; repeatable",
           {"dest": "adapters", **SEVERAL}),
    Option([MERGE], "--despite-digest", "", "merge into a base with other weights than the adapters were trained on"),
    Option([SIGN], "--key", "FILE", "the file with the key: secret, or private in PEM", {"required": True}),

    Option(["runs list"], "folder", "FOLDER", "the folder of the runs (default: this one)",
           {"nargs": "?", "default": "."}),
    Option(["runs list"], "--state", "STATE",
           "only runs in this state: running, paused, finished, stopped, failed, lost or unknown; repeatable",
           {"dest": "states", "choices": STATES, **SEVERAL}),
    Option(["runs list"], "--tag", "TAG", "only runs with this tag; repeatable", {"dest": "tags", **SEVERAL}),
    Option(["runs list"], "--metric", "NAME", "also show this value, as it was logged last; repeatable",
           {"dest": "metrics", **SEVERAL}),
    Option(["runs list"], "--sort", "NAME",
           "sort by run, state, step, left, seen or a logged value (default: seen, the last report first)",
           {"default": "seen"}),
    Option(["runs list"], "--reverse", "", "sort in the opposite order"),
    Option(["runs list"], "--all", "", "also list hidden runs"),
    Option(["runs show"], "run", "RUN", f"a run's output folder, URL or journal; {OF_SEVERAL}"),
    Option(["runs diff"], "one", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["runs diff"], "other", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["why"], "one", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["why"], "other", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["why"], "--recipe", "RECIPE",
           "repeat steps of both runs, with the code that this recipe names and the numbers that the runs recorded",
           {"dest": "first_recipe"}),
    Option(["why"], "--other-recipe", "RECIPE", "the recipe of the second run (default: that of the first)",
           {"dest": "second_recipe"}),
    Option(["report"], "runs", "RUN", f"a run's output folder, URL or journal; {OF_SEVERAL}", {"nargs": "+"}),
    Option(["report"], "--out", "FILE",
           "the HTML file to write (default: report.html in the run's folder, or for several runs in this folder)"),
    Option(["report"], "--quick", "", "do not verify the checkpoints"),
    Option(["board"], "folder", "FOLDER", "the folder of the runs (default: this one)", {"nargs": "?", "default": "."}),
    Option(["board"], "--port", "PORT", "the port on this machine; 0 chooses a free one (default: 8377)",
           {"type": _port, "default": 8377}),
    Option(["board"], "--open", "", "open a browser"),
    Option(["board"], "--export", "FOLDER", "write a static site of the runs to a new folder, and serve nothing"),

    Option(["outbox list", "outbox drop", *FLUSHING], "folder", "FOLDER", "the output folder of a run, or its URL"),
    Option(FLUSHING, "--hub", "HUB", "a hub that may get what is left there and your token: its URL, or a folder; the "
           "Hugging Face Hub always may", {"dest": "hubs", **SEVERAL}),
    Option(FLUSHING, "--repository", "NAME", "a repository that may get what is left, besides those that your runs in "
           "the folder published to", {"dest": "repositories", **SEVERAL}),
    Option(FLUSHING, "--tracker", "NAME", "a tracker that may be made with the options in the outbox, besides those "
           "that your runs chose", {"dest": "trackers", **SEVERAL}),
    Option(FLUSHING, "--for", "SECONDS", "how long to try (default: 600)",
           {"dest": "limit_seconds", "type": float, "default": 600.0}),
    Option(["outbox drop"], "entries", "ENTRY", "the numbers that `list` shows", {"nargs": "*", "type": int}),
    Option(["outbox drop"], "--all", "", "drop everything"),

    Option(["completion"], "shell", "SHELL", "bash, zsh or fish", {"choices": ["bash", "zsh", "fish"]}),

    Option([LIST, VERIFY, SHOW, DIFF, PRUNE, "runs list", "runs show", "runs diff", "why", "outbox list", "doctor"],
           "--json", "", "print JSON"),
    Option([VERIFY, CONSOLIDATE, EXPORT, MERGE], "--key", "FILE", "a key file: refuse what is not signed by it"),
)  # fmt: skip
"""All options, in the order of the help."""


def command_text(argv: Sequence[str]) -> str:
    """Return the shell command for the arguments `argv`, through `hexloop launch` if it started this process."""
    if argv[:1] == ["train"] and (launched := os.environ.get(LAUNCHED_AS)):
        return f"{launched} {shlex.join(argv[1:])}"
    return shlex.join(["hexloop", *argv])


def without_options(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the arguments without the options `names`, however they are spelled, and without their values."""
    kept, left = [], list(argv)
    while left:
        argument = left.pop(0)
        name, equals, _ = argument.partition("=")
        if not argument.startswith("--") or name.removeprefix("--").replace("-", "_") not in names:
            kept.append(argument)
        elif not equals and left and not left[0].startswith("--"):
            left.pop(0)
    return kept
