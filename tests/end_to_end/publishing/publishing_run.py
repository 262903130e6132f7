"""A program that trains the small model and publishes on the hub whose address it is given; may be killed.

Its arguments: the output folder, the address, and further arguments of the run as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from tests.end_to_end.small.trainers import small_trainer

SAVING = {
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
    "num_train_epochs": 3,
    "push_to_hub": True,
    "hub_model_id": "someone/model",
    "hub_strategy": "checkpoint",
}

if __name__ == "__main__":
    folder, address, further = sys.argv[1:]
    hub = HuggingFaceHub(address, "hf_0123456789abcdef")
    trainer = small_trainer(Path(folder), parts={"hub": hub}, **{**SAVING, **json.loads(further)})
    trainer.train(resume_from_checkpoint="auto")
    print(json.dumps(trainer.state.log_history[:-1]), flush=True)
