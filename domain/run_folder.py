"""The names of files in the output folder of a run and in its checkpoints.

Most of hexloop's own are in one hidden folder, so that programs that list the output folder find checkpoints and
results only. Folders written by earlier versions of hexloop have some of them beside the checkpoints, and are still
used as they are.
"""

from __future__ import annotations

import os
from pathlib import Path

RUN_STATE = "run_state.json"
"""A file that every hexloop checkpoint has. It identifies a checkpoint that lost its manifest."""

TRAINER_STATE = "trainer_state.json"
"""The history of a run, for people and tools.

It is written after the model, in transformers as well, so that a user's file of this name does not last.
"""

OWN = ".hexloop"
"""The hidden folder."""

JOURNAL = f"{OWN}/journal.jsonl"
"""The journal of the runs in the folder."""

FINISHED = f"{OWN}/finished.json"
"""The completion marker of a run: the checkpoint that it ended with."""

COMMANDS = f"{OWN}/commands"
"""The commands of a board to the run."""

LABELS = f"{OWN}/labels.json"
"""The tags and notes that users gave the run."""

OUTBOX = f"{OWN}/outbox"
"""What has not reached a hub, a tracker or a slow storage yet, and what was removed before it did."""

MEDIA = f"{OWN}/media"
"""The folder of the media that a run has logged."""

MEDIA_INDEX = "media.jsonl"
"""The index in that folder: one JSON object a line; see `hexloop.domain.media`."""


def system_file(rank: int) -> str:
    """Return the path of the system metrics of a rank; see `hexloop.domain.system_metrics`."""
    return f"{OWN}/system-{rank}.jsonl"


PROFILE = "profile"
"""The folder of the traces and tables that `profile` asks for, beside the checkpoints."""

LOG = "log.jsonl"
"""The log that `report_to="json_lines"` asks for. It is beside the checkpoints, as the files of trackers are."""

EARLIER = {JOURNAL: "journal.jsonl", FINISHED: "finished.json", OUTBOX: ".outbox"}
"""From a name to the one that earlier versions of hexloop gave it."""


def own_file(folder: str | os.PathLike[str], name: str) -> Path:
    """Return the path of one of hexloop's own files in a local folder: the earlier name if there is only that."""
    path, earlier = Path(folder, name), Path(folder, EARLIER.get(name, name))
    return earlier if os.path.lexists(earlier) and not os.path.lexists(path) else path


def within_own(name: str) -> str:
    """Return the path of a file or folder in the hidden folder."""
    return f"{OWN}/{name}"


def own_name(path: str) -> str:
    """Return the name of something in the hidden folder; other paths are returned unchanged."""
    return path.removeprefix(f"{OWN}/")
