"""Prints what the files of wandb's offline mode have: `read_wandb.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from leveldb_log import records
from wandb.proto import wandb_internal_pb2


def name_of(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def stored(path: Path) -> dict[str, Any]:
    """Return what one file has of its run."""
    one: dict[str, Any] = {"identity": None, "parameters": {}, "history": {}, "summary": {}, "status": "running"}
    more: dict[str, Any] = {"artifacts": [], "axes": [], "x": {}}
    for content in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            one |= {"identity": record.run.run_id, "name": record.run.display_name}
            more |= {"project": record.run.project, "group": record.run.run_group}
            for item in record.run.config.update:
                one["parameters"][name_of(item)] = json.loads(item.value_json)
        elif kind == "config":
            for item in record.config.update:
                one["parameters"][name_of(item)] = json.loads(item.value_json)
        elif kind == "history":
            row = {name_of(item): json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            for name, value in row.items():
                if not name.startswith("_"):
                    one["history"].setdefault(name, []).append((step, value))
                    more["x"].setdefault(name, []).append(row.get("train/global_step"))
        elif kind == "summary":
            for item in record.summary.update:
                one["summary"][name_of(item)] = json.loads(item.value_json)
        elif kind == "metric":
            more["axes"].append([record.metric.name or record.metric.glob_name, record.metric.step_metric])
        elif kind == "artifact":
            entries = sorted(entry.path for entry in record.artifact.manifest.contents)
            described = {"name": record.artifact.name, "type": record.artifact.type, "files": entries}
            described["aliases"] = list(record.artifact.aliases)
            described["metadata"] = json.loads(record.artifact.metadata or "{}")
            more["artifacts"].append(described)
        elif kind == "preempting":
            more["preempting"] = True
        elif kind == "exit":
            one["status"] = f"exit code {record.exit.exit_code}"
    if more.get("preempting"):
        one["status"] += ", preempting"
    return {**one, "more": more}


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1], "wandb").glob("offline-run-*/run-*.wandb"), key=lambda each: each.stat().st_ctime)
    print(json.dumps([stored(file) for file in files]))
