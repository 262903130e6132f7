"""`hexloop checkpoints show`: what a checkpoint says of itself."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from hexloop.app.command_line.exit_codes import ExitCode

if TYPE_CHECKING:
    from hexloop.app.command_line.checkpoints.places import Place
    from hexloop.domain.checkpoints.manifest import Manifest

HELP = "show what a checkpoint holds"

DESCRIPTION = """\
Shows which run wrote a checkpoint, at which step, where that run stood, and the files
with their sizes and digests. Nothing is verified: `hexloop checkpoints verify` does that."""

STATE_FACTS = (
    "step", "epoch", "position", "samples", "tokens", "updates", "learning_rate", "best_metric", "best_step",
    "best_checkpoint", "due", "seed", "data_seed",
)  # fmt: skip
"""What of the run's state is shown."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder or URL")
    parser.add_argument("--tensors", action="store_true", help="list the tensors of each file, with type and shape")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> ExitCode:
    """Print the facts."""
    from hexloop.app.command_line.checkpoints.places import open_checkpoints
    from hexloop.domain.checkpoints.reading import read_manifest

    (place,) = open_checkpoints([options.checkpoint])
    document = _document(place, read_manifest(place.storage, place.name), options.tensors)
    print(json.dumps(document, indent=2) if options.json else "\n".join(_lines(document)))
    return ExitCode.DONE


def _document(place: Place, manifest: Manifest, tensors: bool) -> dict[str, Any]:
    from hexloop.app.command_line.checkpoints.metrics import metric_of, read_state
    from hexloop.domain.json_documents import finite_json

    state = read_state(place.storage, place.name)
    document: dict[str, Any] = {
        "checkpoint": place.given,
        "run": manifest.run,
        "session": manifest.session,
        "ancestors": dict(manifest.ancestors),
        "parent": manifest.parent,
        "step": manifest.step,
        "processes": manifest.world_size,
        "environment": dict(manifest.environment),
        "state": None,
        "files": {path: {"size": each.size, "digest": each.digest} for path, each in sorted(manifest.files.items())},
    }
    if state is not None:
        facts = {name: getattr(state, name) for name in STATE_FACTS}
        metric = metric_of(state)
        document["state"] = finite_json(
            {**facts, "log_entries": len(state.history), **dict([metric] if metric else [])}
        )
    if tensors:
        document["tensors"] = _tensors(place, manifest)
    return document


def _tensors(place: Place, manifest: Manifest) -> dict[str, list[dict[str, Any]]]:
    """The tensors of each file, in the order of their bytes. Raises CheckpointError where one is no such file."""
    from hexloop.adapters.contents.checkpoint.safetensors_files import Stream, tensor_parts

    stream = Stream(lambda path, start=0: place.storage.read(f"{place.name}/{path}", start))
    found = {}
    for path in sorted(manifest.files):
        if path.endswith(".safetensors"):
            parts = tensor_parts(stream, path)
            found[path] = [{"name": part.name, "dtype": part.dtype, "shape": list(part.shape)} for part in parts]
    return found


def _lines(document: dict[str, Any]) -> list[str]:
    from hexloop.app.command_line.checkpoints.text import aligned, told_bytes

    lines = list(aligned([(name, str(document[name])) for name in ("checkpoint", "run", "session", "parent", "step")]))
    for session, step in document["ancestors"].items():
        lines.append(f"goes on from session {session} at step {step:,}")
    lines += ["", "Written with", *_indented({"processes": document["processes"], **document["environment"]})]
    if document["state"] is None:
        lines += ["", "Where the run stood: the checkpoint does not hold it, or it cannot be read"]
    else:
        lines += ["", "Where the run stood", *_indented(document["state"])]
    files = [(path, told_bytes(each["size"]), each["digest"]) for path, each in document["files"].items()]
    total = sum(each["size"] for each in document["files"].values())
    lines += ["", f"Files, {told_bytes(total)} (not verified)", *(f"  {line}" for line in aligned(files, right=(1,)))]
    for path, tensors in document.get("tensors", {}).items():
        rows = [(each["name"], each["dtype"], str(each["shape"])) for each in tensors]
        lines += ["", f"Tensors of {path}", *(f"  {line}" for line in aligned(rows))]
    return lines


def _indented(facts: dict[str, Any]) -> list[str]:
    from hexloop.app.command_line.checkpoints.text import aligned

    return [f"  {line}" for line in aligned([(name, str(value)) for name, value in facts.items()])]
