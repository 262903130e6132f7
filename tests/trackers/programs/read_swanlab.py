"""Prints what the folders of swanlab's offline mode have: `read_swanlab.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from leveldb_log import records
from swanlab.proto.swanlab.record.v1 import record_pb2
from swanlab.proto.swanlab.run.v1 import run_pb2


def stored(path: Path) -> dict[str, Any]:
    """Return what one file has of its run, with the configuration beside it."""
    one: dict[str, Any] = {"identity": None, "history": {}, "status": "running"}
    more: dict[str, Any] = {"texts": {}, "error": None}
    for content in records(path):
        record = record_pb2.Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "start":
            one |= {"identity": record.start.id, "name": record.start.name}
            more |= {"project": record.start.project, "group": record.start.group}
        elif kind == "scalar":
            one["history"].setdefault(record.scalar.key, []).append((record.scalar.step, record.scalar.value.number))
        elif kind == "media":
            more["texts"][record.media.key] = str(record.media)
        elif kind == "finish":
            one["status"] = run_pb2.RunState.Name(record.finish.state)
            more["error"] = record.finish.error
    config = path.parent / "files" / "config.yaml"
    parameters = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {}
    one["parameters"] = {name: entry["value"] for name, entry in (parameters or {}).items()}
    return {**one, "more": more}


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1], "swanlog").glob("run-*/run-*.swanlab"), key=lambda each: each.stat().st_ctime)
    print(json.dumps([stored(file) for file in files]))
