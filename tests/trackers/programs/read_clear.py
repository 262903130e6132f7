"""Prints what ClearML's offline sessions have: `read_clear.py FOLDER`. The archive of a session is checked, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, which has a list in each line."""
    return [event for line in path.read_text().splitlines() for event in json.loads(line)] if path.exists() else []


def read(folder: Path) -> dict[str, Any]:
    """Return the content of one session."""
    task = json.loads((folder / "task.json").read_text())
    archive = folder.with_suffix(".zip")
    if archive.exists():
        with ZipFile(archive) as opened:
            assert opened.read("task.json") == (folder / "task.json").read_bytes()
            assert opened.read("metrics.jsonl") == (folder / "metrics.jsonl").read_bytes()
    history: dict[str, list[Any]] = {}
    summary: dict[str, Any] = {}
    for event in lines(folder / "metrics.jsonl"):
        if event["metric"] == "Summary":
            summary[event["variant"]] = event["value"]
        elif not event["metric"].startswith(":monitor"):
            history.setdefault(f"{event['metric']}/{event['variant']}", []).append((event["iter"], event["value"]))
    parameters = {
        f"{section}/{name}": each["value"]
        for section, all_ in task["hyperparams"].items()
        for name, each in all_.items()
    }
    configurations = {name: each["value"] for name, each in task.get("configuration", {}).items()}
    for line in configurations.get("Model Configuration", "").splitlines():
        name, _, value = line.partition(" = ")
        parameters[f"Model Configuration/{name}"] = value
    return {
        "identity": task["id"],
        "name": task["name"],
        "status": parameters.get("hexloop/outcome"),
        "parameters": parameters,
        "history": history,
        "summary": summary,
        "more": {
            "project": task["project_name"],
            "configurations": configurations,
            "models": task.get("offline_output_models"),
            "log": "".join(event["msg"] for event in lines(folder / "log.jsonl")),
        },
    }


if __name__ == "__main__":
    sessions = Path(sys.argv[1]).glob("home/.clearml/cache/offline/*/task.json")
    print(json.dumps([read(path.parent) for path in sorted(sessions, key=lambda path: path.stat().st_ctime)]))
