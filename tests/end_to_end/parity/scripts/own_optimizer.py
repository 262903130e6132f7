"""A subclass whose `create_optimizer` gives deeper layers a smaller learning rate, logged by a callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    class LayerwiseTrainer(library.Trainer):  # type: ignore[misc]
        optimizer: Any

        def create_optimizer(self, *_model: Any) -> Any:
            if self.optimizer is None:
                deep = [each for name, each in self.model.named_parameters() if name.startswith("first")]
                rest = [each for name, each in self.model.named_parameters() if not name.startswith("first")]
                rate = self.args.learning_rate
                groups = [{"params": deep, "lr": rate / 10}, {"params": rest, "lr": rate, "weight_decay": 0.1}]
                self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
            return self.optimizer

    class RatesOfLayers(library.TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            state.log_history[-1]["rates"] = [group["lr"] for group in kwargs["optimizer"].param_groups]

    library.set_seed(7)
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="cosine_with_restarts",
        lr_scheduler_kwargs={"num_cycles": 2},
        eval_strategy="steps",
        eval_steps=5,
        eval_delay=4,
        save_steps=6,
        save_total_limit=1,
        logging_steps=3,
        **options,
    )
    trainer = LayerwiseTrainer(
        model=make_model("convolution"),
        args=arguments,
        train_dataset=samples_for("convolution", 60),
        eval_dataset=samples_for("convolution", 20, seed=1),
        callbacks=[*callbacks, RatesOfLayers],
    )
    return train_evaluate_predict(trainer)
