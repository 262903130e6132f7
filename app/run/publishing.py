"""What a run publishes on a hub, and when: checkpoints, the final model, and what is left at the end."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import evolve

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import HubStrategy, SaveStrategy
from hexloop.app.assembly.checkpoint_files import is_run_file
from hexloop.app.assembly.outboxes import note_pushed, pushed_in
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.publishing import HubPublisher, Published, create_in_time, finishing_command
from hexloop.app.assembly.pushes import FOLDER, MODEL, Push, link_or_copy, subject_of
from hexloop.app.assembly.storage import as_location, is_elsewhere
from hexloop.app.callbacks.console import bar_of_the_rest
from hexloop.domain.checkpoints.manifest import MANIFEST, step_of
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError, RefusedError, StorageError, UnavailableError
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved, TrainBegan
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.outbox import Intent
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.run import Run
from hexloop.domain.run_folder import EARLIER, LOG, TRAINER_STATE
from hexloop.domain.wording import Problem
from hexloop.ports.hub import Hub

LOGGER = logging.getLogger("hexloop.outbox")

LAST_CHECKPOINT = "last-checkpoint"

ANSWER_WITHIN = 10.0
"""Seconds in which a hub must answer before a run to count as reachable."""

AFTER_A_STOP = 5.0
"""Seconds of `outbox_grace` and `logger_grace` at most if the run was stopped: its machine may soon be taken away."""

KEPT_HERE = frozenset({*EARLIER.values(), LOG})
"""Files of the output folder that are hexloop's own, and are not part of a model."""

SAGEMAKERS_MARKS = (".sagemaker-uploading", ".sagemaker-uploaded")
"""The ends of the names of files that SageMaker puts beside those that it copies to its storage."""

_at_exit: list[HubPublisher] = []
"""Those that are finished when the program exits, because it did not wait for a push."""


def repository_of(args: TrainingArguments) -> str:
    """Return the name of the repository that the arguments choose: `hub_model_id`, or that of the output folder."""
    folder = as_location(args.output_dir or "trainer_output").rstrip("/\\")
    return args.hub_model_id or os.path.basename(folder) or "model"


def create_repository(parts: TrainerParts, hub: Hub, private: bool | None) -> str:
    """Create the repository on rank 0, and return its full name on every rank. Collective.

    Raises ConfigurationError if the hub refuses it, and UnavailableError if it does not answer in time.
    """
    name = parts.hub_model_id or repository_of(parts.args)

    def create() -> list[str]:
        try:
            return ["", create_in_time(hub, name, private, ANSWER_WITHIN)]
        except RefusedError as error:
            return ["refused", str(error)]
        except StorageError as error:
            return ["unavailable", str(error)]

    outcome, text = run_on_rank0(parts.adapters.collectives, create)
    if outcome == "refused":
        raise ConfigurationError(Problem(f"The hub refuses hub_model_id={name!r}: {text}", kind=OSError))
    if outcome:
        raise UnavailableError(text)
    return text


# Checkpoints


def publishing_events(
    parts: TrainerParts, run: Run[Any, Any], resumed: str | None
) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handlers that publish checkpoints; none if the arguments do not ask for that, or on other ranks.

    resumed: the checkpoint in the run's own storage that it continues; None if there is none.
    They never raise: a push that cannot be entered into the outbox is reported, and the run continues.
    """
    args = parts.args
    if not args.push_to_hub or not parts.adapters.mesh.writes:
        return {}
    with _reporting("what an earlier run left in the outbox"):
        parts.publisher.open()

    best = set[str]()
    strategy = args.hub_strategy

    def push(name: str) -> None:
        with _reporting(name):
            parts.hooks.push_from_checkpoint(os.path.join(parts.folder, name))
            note_pushed(parts.publisher.folder, name)

    def on_began(event: TrainBegan) -> None:
        """Push what the run resumes from, if its process died between publishing it and entering its push."""
        if resumed is None or resumed == pushed_in(parts.publisher.folder):
            return
        if strategy != HubStrategy.BEST or run.state.best_step == step_of(resumed):
            push(resumed)

    def on_saved(event: Saved) -> None:
        if run.state.best_step == event.step:
            best.add(event.name)

    def on_published(event: CheckpointPublished) -> None:
        if strategy != HubStrategy.BEST or event.name in best:
            push(event.name)

    if strategy == HubStrategy.END:
        return {}
    return {TrainBegan: on_began, Saved: on_saved, CheckpointPublished: on_published}


def objection_to(left: Push, hub: str, names: Collection[str], full_name: Callable[[str], str]) -> str:
    """Return why a run does not make a push that was in its outbox; "" if it does.

    Others who can write to the folder can add one, and it is made with the token of the user who trains. So it must be
    for the run's own repository, by its whole name.

    hub: the address of the run's hub. names: those of the run's repository, as it was chosen and, if that is known, in
    full. full_name: asks the hub for the full name of a repository of the run.
    """
    if left.hub == hub and (left.name in names or any(full_name(each) == left.name for each in names)):
        return ""
    return f"It was left in the outbox by another run, and this one publishes to {max(names, key=len)} on {hub}."


@contextmanager
def _reporting(subject: str) -> Iterator[None]:
    """Log an error of the outbox instead of raising it."""
    try:
        yield
    except (StorageError, CheckpointError, OSError) as error:
        LOGGER.warning("Publishing %s failed: %s. The run continues without it.", subject, error)


def push_checkpoint(parts: TrainerParts, name: str) -> None:
    """Enter a push of a published checkpoint into the outbox: the model, and the checkpoint if `hub_strategy` says so.

    It is read from the checkpoint, of which the outbox keeps hard links, so that neither changes of the output folder
    nor rotation affect it.
    """
    parts.dispatcher.call("on_push_begin")
    args, storage = parts.args, parts.adapters.storage
    stored = read_manifest(storage, name).files
    paths = [*stored, MANIFEST]
    policy = parts.adapters.framework.weights(parts.unwrapped_model)
    published = {path: f"{name}/{path}" for path in model_paths(paths, policy.published)}
    strategy, into = args.hub_strategy, None
    if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        into = LAST_CHECKPOINT if strategy == HubStrategy.CHECKPOINT else name
        published |= {f"{into}/{path}": f"{name}/{path}" for path in paths}
    root = storage.capabilities.local_folder
    push = _push_of(parts, _progress_message(parts, name), [MODEL, *([into] if into else [])])
    push = evolve(push, delete=[f"{into}/"] if into else [])
    if root is None:
        push = evolve(push, storage=storage.capabilities.location, files=published)

    def fill(folder: Path) -> None:
        for path, source in published.items():
            link_or_copy(os.path.join(str(root), source), folder / path)

    room = 0 if root is None else sum(each.size for each in stored.values())
    parts.publisher.push(push, None if root is None else fill, not args.hub_always_push, room)


def model_paths(paths: Sequence[str], choose: Callable[[Sequence[str]], list[str]]) -> list[str]:
    """Return the files of the model in a checkpoint that are published. choose: the policy's choice among them."""
    chosen = [path for path in paths if not is_run_file(path) and path != MANIFEST and _is_published(path)]
    return choose(chosen)


def _is_published(path: str) -> bool:
    return not any(name.startswith((".", "_")) for name in path.split("/"))


def _progress_message(parts: TrainerParts, name: str) -> str:
    """Return the message of a checkpoint's commit. Training may have gone further since it was saved."""
    if parts.args.save_strategy == SaveStrategy.STEPS:
        return f"Training in progress, step {step_of(name)}"
    saved = read_json(read_bytes(parts.adapters.storage.read(f"{name}/{TRAINER_STATE}")), finite=False)
    return f"Training in progress, epoch {int(saved.get('epoch') or 0)}"


def _push_of(parts: TrainerParts, message: str, covers: Sequence[str]) -> Push:
    """Return a push without files to the repository and branch that the arguments name."""
    args, name = parts.args, parts.hub_model_id or repository_of(parts.args)
    return Push(parts.adapters.hub.address, name, message, covers, (), args.hub_revision, args.hub_private_repo)


# The final model


def refuse_url(args: TrainingArguments) -> None:
    """Raise ConfigurationError if the output folder, whose files are to be published, is not on this machine."""
    if is_elsewhere(str(args.output_dir)):
        raise ConfigurationError(
            f"push_to_hub publishes the files of a local folder, but output_dir={args.output_dir!r} is a URL; "
            "checkpoints are published from there, and save_model to a folder, with huggingface_hub.upload_folder, "
            "publishes another model."
        )


def push_folder(
    parts: TrainerParts, message: str, revision: str | None, private: bool | None, review: bool = False
) -> Intent:
    """Enter a push of the files in the output folder into the outbox, which keeps a copy of them. On rank 0."""
    source = Path(parts.folder)

    def fill(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=lambda at, names: _left_out(source, at, names))
        if "SM_TRAINING_ENV" in os.environ:
            _ignore_marks(source, folder)

    push = _push_of(parts, message, [MODEL, FOLDER])
    private = push.private if private is None else private
    push = evolve(push, branch=revision or push.branch, private=private, review=review)
    return parts.publisher.push(push, fill)


def _ignore_marks(source: Path, folder: Path) -> None:
    """Name the marks of SageMaker in the .gitignore of a push, after what the output folder's own one names."""
    own = source / ".gitignore"
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    lines += [pattern for mark in SAGEMAKERS_MARKS if (pattern := f"*{mark}") not in lines]
    (folder / ".gitignore").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _left_out(root: Path, folder: str, names: Sequence[str]) -> set[str]:
    """Return the names in a folder that are not published: checkpoints, hidden files and hexloop's own."""
    left = {name for name in names if not _is_published(name) or name.endswith(SAGEMAKERS_MARKS)}
    if Path(folder) == root:
        apart = ("checkpoint-", "damaged-", "replaced-")
        left |= {name for name in names if name in KEPT_HERE or name.startswith(apart)}
    return left


def wait_for(parts: TrainerParts, intent: Intent) -> tuple[str, Any] | None:
    """Wait for a push, and return the repository's full name and the commit as huggingface_hub states it.

    None if a newer push replaced it. See `HubPublisher.wait` for what is raised.
    """
    published = parts.publisher.wait(intent, parts.args.outbox_grace)
    parts.publisher.finish(0.0)
    return None if published is None else (published.name, _commit_info(parts, published))


def future_of(parts: TrainerParts, intent: Intent) -> Future[Any]:
    """Return the outcome of a push in the future, as huggingface_hub does."""
    outcome: Future[Any] = Future()

    def pass_on(done: Future[Published]) -> None:
        if done.cancelled():
            outcome.cancel()
        elif (error := done.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(_commit_info(parts, done.result()))

    publisher, grace = parts.publisher, parts.args.outbox_grace
    publisher.future(intent).add_done_callback(pass_on)
    if publisher not in _at_exit:
        _at_exit.append(publisher)
        atexit.register(_finish, publisher, grace, not parts.args.disable_tqdm)
    return outcome


def _commit_info(parts: TrainerParts, published: Published) -> Any:
    """Return a commit as huggingface_hub does, if the hub has web pages."""
    address = parts.adapters.hub.address
    if not address.startswith("http"):
        return published
    from huggingface_hub import CommitInfo

    url = f"{address}/{published.name}/commit/{published.version}"
    try:
        return CommitInfo(url, published.message, "", published.version, _endpoint=address)
    except (TypeError, ValueError):  # of a release with other parameters
        return published


# The end


def finish_pushes_after(parts: TrainerParts, stopped: bool) -> None:
    """Wait for what is not published yet at the end of a run, for a shorter time if the run was stopped."""
    finish_pushes(parts, AFTER_A_STOP if stopped else None)


def finish_pushes(parts: TrainerParts, limit: float | None = None) -> None:
    """Work off the outbox for `outbox_grace` seconds, or `limit`, and warn about what is left. On rank 0."""
    if not parts.adapters.mesh.writes:
        return
    seconds = parts.args.outbox_grace if limit is None else min(limit, parts.args.outbox_grace)
    _finish(parts.publisher, seconds, not parts.args.disable_tqdm)


def _finish(publisher: HubPublisher, seconds: float, shows: bool) -> None:
    with bar_of_the_rest("Publishing", "push", shows) as show:
        left = publisher.finish(seconds, show)
    if left:
        warnings.warn(_what_is_left(left, publisher.folder), stacklevel=3)


def _what_is_left(left: Sequence[Intent], folder: str) -> str:
    listed = "".join(
        f"\n  {intent.number}: {subject_of(intent)}"
        f"{', refused' if intent.refused else ''} ({intent.problem or 'not sent yet'})"
        for intent in left
    )
    return (
        f"Not published yet, and kept in the outbox:{listed}\nOnce the cause is gone, finish with: "
        f"{finishing_command(left, folder)}"
    )
