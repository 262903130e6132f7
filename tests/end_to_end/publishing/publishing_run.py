"""A program that trains the small model and publishes on the hub whose address it is given; may be killed.

Its arguments: the output folder, the address, and further arguments of the run as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from tests.end_to_end.small.trainers import small_trainer

TOKEN = "hf_0123456789abcdef"

SAVING = {
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
    "num_train_epochs": 3,
    "push_to_hub": True,
    "hub_model_id": "someone/model",
    "hub_strategy": "checkpoint",
}


def publish(folder: str, address: str, further: dict[str, Any]) -> list[dict[str, float]]:
    """Train and publish, from the newest checkpoint on; return what was logged, without clock readings."""
    hub = HuggingFaceHub(address, TOKEN)
    trainer = small_trainer(Path(folder), parts={"hub": hub}, **{**SAVING, **further})
    trainer.train(resume_from_checkpoint="auto")
    logged: list[dict[str, float]] = trainer.state.log_history[:-1]
    return logged


if __name__ == "__main__":
    print(json.dumps(publish(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))), flush=True)
