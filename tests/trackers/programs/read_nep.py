"""Prints what the offline runs of neptune have: `read_nep.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def read(folder: Path) -> dict[str, Any]:
    """Return the content of one run: the operations that `neptune sync` would send, carried out."""
    fields: dict[str, Any] = {}
    history: dict[str, list[Any]] = {}
    uploads: list[Any] = []
    for path in sorted(folder.glob("data-*.log"), key=lambda each: int(each.stem.partition("-")[2])):
        for line in path.read_text().splitlines():
            operation = json.loads(line)["obj"]
            name = "/".join(operation["path"])
            if operation["type"].startswith("Assign"):
                fields[name] = operation["value"]
            elif operation["type"] in ("LogFloats", "LogStrings") and not name.startswith("monitoring/"):
                history.setdefault(name, []).extend((each["step"], each["value"]) for each in operation["values"])
            elif operation["type"] == "UploadFileSet":
                uploads.append(("upload", name, operation["file_globs"]))
            elif operation["type"] == "DeleteAttribute":
                uploads.append(("delete", name, None))
    failed = " and sys/failed" if fields.get("sys/failed") else ""
    return {
        "identity": fields.get("hexloop/run_id"),
        "name": fields.get("sys/name"),
        "status": f"{fields.get('hexloop/outcome')}{failed}",
        "parameters": fields,
        "history": history,
        "summary": {},
        "more": {"uploads": [each for each in uploads if not each[1].startswith("source_code/")]},
    }


if __name__ == "__main__":
    folders = Path(sys.argv[1], ".neptune", "offline").glob("run__*")
    print(
        json.dumps([read(each) for each in sorted(folders, key=lambda each: (each / "metadata.json").stat().st_mtime)])
    )
