"""Prints what the databases of trackio have: `read_trackio.py FOLDER`."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any


def stored(database: sqlite3.Connection, identity: str, name: str, config: bytes) -> dict[str, Any]:
    """Return what a database has of one run."""
    history: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for step, row in database.execute("select step, metrics from metrics where run_id = ? order by id", (identity,)):
        for key, value in json.loads(row).items():
            if isinstance(value, str):
                texts[key] = value
            history.setdefault(key, []).append((step, value))
    alerts = database.execute("select title, text, level from alerts where run_id = ?", (identity,)).fetchall()
    parameters = json.loads(config)
    return {
        "identity": f"{identity}/{name}",
        "name": name,
        "status": texts.get("hexloop/outcome"),
        "parameters": parameters,
        "history": history,
        "more": {"alerts": alerts, "group": parameters.get("_Group"), "texts": texts},
    }


if __name__ == "__main__":
    runs = []
    for file in sorted(Path(sys.argv[1], "trackio").glob("*.db")):
        connection = sqlite3.connect(file)
        for row in connection.execute("select run_id, run_name, config from configs order by id").fetchall():
            runs.append({**stored(connection, *row)})
            runs[-1]["more"]["project"] = file.stem
    print(json.dumps(runs))
