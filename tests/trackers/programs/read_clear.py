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


def files_of(path: str) -> dict[str, str]:
    """Return the files in an archive."""
    with ZipFile(path.removeprefix("file://")) as opened:
        return {name: opened.read(name).decode() for name in opened.namelist()}


def read(folder: Path) -> dict[str, Any]:
    """Return the content of one session."""
    task = json.loads((folder / "task.json").read_text())
    archive = folder.with_suffix(".zip")
    if archive.exists():
        with ZipFile(archive) as opened:
            names = {name: opened.read(name) for name in opened.namelist()}
        assert names == {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
    history: dict[str, list[Any]] = {}
    summary: dict[str, Any] = {}
    for event in lines(folder / "metrics.jsonl"):
        if event["metric"] == "Summary":
            summary[event["variant"]] = event["value"]
        elif "value" in event and not event["metric"].startswith(":monitor"):  # plots and media have none
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
            "artifacts": {each["key"]: files_of(each["uri"]) for each in task["execution"]["artifacts"]},
            "log": "".join(event["msg"] for event in lines(folder / "log.jsonl")),
        },
    }


if __name__ == "__main__":
    sessions = Path(sys.argv[1]).glob("home/.clearml/cache/offline/*/task.json")
    print(json.dumps([read(path.parent) for path in sorted(sessions, key=lambda path: path.stat().st_ctime)]))
