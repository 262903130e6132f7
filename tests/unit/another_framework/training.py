"""Trains, evaluates, saves and resumes with a framework of lists, while torch cannot be imported."""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from typing import Any

BANNED = ("torch", "transformers", "accelerate")


class Refuses(MetaPathFinder):
    """Raises ImportError for the banned packages."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Refuse a banned package."""
        if fullname.partition(".")[0] in BANNED:
            raise ImportError(f"{fullname} is not to be imported")


def main(folder: str) -> None:
    """Train 24 steps in one run, and in two runs of which the second resumes; print what they end with."""
    sys.meta_path.insert(0, Refuses())
    from hexloop import Trainer, TrainingArguments
    from hexloop.adapters.trainable.least_squares import LinearModel
    from tests.unit.another_framework.lists import Lists

    rows = [((float(x),), 3.0 * x - 1.0) for x in range(-8, 8)]

    def trainer(name: str, steps: int) -> Any:
        arguments = TrainingArguments(
            f"{folder}/{name}", max_steps=steps, per_device_train_batch_size=4, learning_rate=0.004, max_grad_norm=0,
            logging_steps=6, eval_strategy="steps", eval_steps=6, save_steps=6, load_best_model_at_end=True,
            lr_scheduler_type="constant", optim="sgd", report_to=["json_lines"], disable_tqdm=True,
        )  # fmt: skip
        return Trainer(LinearModel(), arguments, train_dataset=rows, eval_dataset=rows[:6], framework=Lists())

    whole = trainer("whole", 24)
    whole.train()
    trainer("parts", 12).train()
    resumed = trainer("parts", 24)
    resumed.train(resume_from_checkpoint=True)
    whole.save_model(f"{folder}/saved")
    print(
        json.dumps(
            {
                "whole": whole.model.parameters,
                "resumed": resumed.model.parameters,
                "losses": [entry["loss"] for entry in whole.state.log_history if "loss" in entry],
                "eval": whole.evaluate()["eval_loss"],
                "best": whole.state.best_model_checkpoint,
                "imported": sorted(set(BANNED) & sys.modules.keys()),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
