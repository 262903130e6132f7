"""Prints what the archives of Comet's offline experiments have: `read_comet.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile


def read(path: Path) -> dict[str, Any]:
    """Return the content of one archive."""
    with ZipFile(path) as archive:
        about = json.loads(archive.read("experiment.json"))
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        files = {
            message["payload"]["additional_params"]["fileName"]: archive.read(message["payload"]["file_path"]).decode()
            for message in messages
            if message["type"] == "file_upload" and message["payload"]["upload_type"] == "asset"
        }
    found: dict[str, Any] = {
        "identity": about["offline_id"],
        "history": {},
        "parameters": {},
        "summary": {},
        "more": {**about, "files": files, "file": path.name, "epochs": {}},
    }
    for message in messages:
        content = message["payload"]
        if message["type"] == "metric_msg":
            metric = content["metric"]
            found["history"].setdefault(metric["metricName"], []).append((metric["step"], metric["metricValue"]))
            found["more"]["epochs"].setdefault(metric["metricName"], []).append(metric["epoch"])
        elif message["type"] == "parameter_msg":
            parameter = content.get("param") or content.get("params")
            found["parameters"][parameter["paramName"]] = parameter["paramValue"]
        elif message["type"] == "log_other":
            found["summary"][content["key"]] = content["value"]
        elif message["type"] == "graph":
            found["more"]["graph"] = content["graph"]
        elif message["type"] == "optimization":
            found["more"]["optimization"] = content
    found["name"] = found["summary"].get("Name")
    found["status"] = found["summary"].get("hexloop/outcome")
    return {**found, "started": about["start_time"]}


if __name__ == "__main__":
    runs = sorted((read(path) for path in Path(sys.argv[1], "comet").glob("*.zip")), key=lambda each: each["started"])
    for each in runs:
        del each["started"]
    print(json.dumps(runs))
