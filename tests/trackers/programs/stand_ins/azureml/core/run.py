"""A stand-in for a run of Azure Machine Learning: it keeps every call in the file AZURE_CALLS."""

from __future__ import annotations

import json
import os
from typing import Any


class Run:
    """The methods of azureml.core.run.Run that the adapter uses, with its parameters."""

    def __init__(self) -> None:
        self.id = os.environ["AZUREML_RUN_ID"]

    @classmethod
    def get_context(cls, allow_offline=True, used_for_context_manager=False, **kwargs) -> Run:
        return cls()

    def log(self, name, value, description="", step=None) -> None:
        self._keep(["log", name, value, description, step])

    def tag(self, key, value=None) -> None:
        self._keep(["tag", key, value])

    def flush(self, timeout_seconds=300) -> None:
        self._keep(["flush"])

    def _keep(self, call: list[Any]) -> None:
        with open(os.environ["AZURE_CALLS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")
