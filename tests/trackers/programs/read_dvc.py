"""Prints what the folder of dvclive has: `read_dvc.py FOLDER`."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import yaml


def value_of(text: str) -> Any:
    """Return a number, or the text if it is none."""
    try:
        return float(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def read(folder: Path) -> dict[str, Any]:
    """Return the content of one folder."""
    summary = json.loads((folder / "metrics.json").read_text())
    history = {}
    tables = folder / "plots" / "metrics"
    for path in tables.rglob("*.tsv"):
        name = path.relative_to(tables).with_suffix("").as_posix()
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        history[name] = [(float(row["step"]), value_of(row[path.stem])) for row in rows]
    return {
        "identity": str(folder),
        "status": summary.get("hexloop", {}).get("outcome"),
        "parameters": yaml.safe_load((folder / "params.yaml").read_text()),
        "history": history,
        "summary": summary,
        "more": {"artifacts": sorted(str(path.relative_to(folder)) for path in folder.glob("artifacts/**/*"))},
    }


if __name__ == "__main__":
    found = Path(sys.argv[1], *sys.argv[2:] or ["dvclive"])
    print(json.dumps([read(found)] if (found / "metrics.json").exists() else []))
