"""Prints what a store of MLflow has: `read_mlflow.py FOLDER`, with the variables of the store."""

from __future__ import annotations

import json
import os
from typing import Any

import mlflow


def stored(client: Any, run: Any) -> dict[str, Any]:
    """Return what the store has of one run."""
    history = {}
    for name in run.data.metrics:
        points = sorted(
            client.get_metric_history(run.info.run_id, name), key=lambda point: (point.timestamp, point.step)
        )
        history[name] = [(point.step, point.value) for point in points]
    artifacts, folders = [], [None]
    while folders:
        for entry in client.list_artifacts(run.info.run_id, folders.pop()):
            (folders if entry.is_dir else artifacts).append(entry.path)
    return {
        "identity": run.info.run_id,
        "name": run.info.run_name,
        "status": run.info.status,
        "parameters": run.data.params,
        "history": history,
        "more": {"tags": run.data.tags, "artifacts": sorted(artifacts)},
    }


if __name__ == "__main__":
    client = mlflow.MlflowClient()
    wanted = os.environ.get("READ_EXPERIMENT") or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    experiments = [each for each in client.search_experiments() if wanted in (None, each.name)]
    runs = client.search_runs([each.experiment_id for each in experiments], order_by=["attributes.start_time ASC"])
    print(json.dumps([stored(client, run) for run in runs]))
