"""The same training with six libraries, and with code for transformers during a takeover by hexloop.

It uses fused AdamW, a linear schedule, gradient norms clipped to 1, and shuffled batches.

Each function trains for `steps` steps. If a library has a Trainer, it is used with its default callbacks, without a
progress bar, and without saves.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.bench.workloads import BATCH, RATE, collate
from tests.reference import bare_loop


def bare(model: nn.Module, dataset: Any, steps: int) -> None:
    """The hand-written loop."""
    bare_loop.train(model, dataset, steps, BATCH, collate, lr=RATE)


def trainer_arguments(folder: str, steps: int) -> dict[str, Any]:
    """Arguments of both hexloop and transformers."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "max_steps": steps,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def by_hexloop(model: nn.Module, dataset: Any, steps: int) -> None:
    """Hexloop's Trainer."""
    from hexloop import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(**trainer_arguments(folder, steps))
        Trainer(model, args, data_collator=collate, train_dataset=dataset).train()


def by_transformers(model: nn.Module, dataset: Any, steps: int) -> None:
    """Transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(**trainer_arguments(folder, steps))
        Trainer(model, args, data_collator=collate, train_dataset=dataset).train()


def by_takeover(model: nn.Module, dataset: Any, steps: int) -> None:
    """The code for transformers' Trainer, during a takeover by hexloop."""
    import hexloop

    with hexloop.takeover():
        by_transformers(model, dataset, steps)


def _parts(model: nn.Module, dataset: Any, steps: int) -> tuple[torch.optim.Optimizer, Any, DataLoader[Any]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / steps))
    return optimizer, schedule, DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=collate)


def by_fabric(model: nn.Module, dataset: Any, steps: int) -> None:
    """The hand-written loop with Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    optimizer, schedule, loader = _parts(model, dataset, steps)
    wrapped, wrapped_optimizer = fabric.setup(model, optimizer)
    total = torch.zeros(())
    wrapped.train()
    for batch in islice(fabric.setup_dataloaders(loader), steps):
        loss = wrapped(**batch)["loss"]
        fabric.backward(loss)
        fabric.clip_gradients(wrapped, wrapped_optimizer, max_norm=1.0)
        wrapped_optimizer.step()
        schedule.step()
        wrapped_optimizer.zero_grad()
        total += loss.detach()


def accelerated(accelerator: Any, model: nn.Module, dataset: Any, steps: int, pieces: Any = None) -> None:
    """The hand-written loop with an Accelerator. pieces: optimizer, schedule and loader, if they are others."""
    model, optimizer, schedule, loader = accelerator.prepare(model, *(pieces or _parts(model, dataset, steps)))
    total = torch.zeros((), device=accelerator.device)
    model.train()
    for batch in islice(loader, steps):
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()


def by_accelerate(model: nn.Module, dataset: Any, steps: int) -> None:
    """The hand-written loop with accelerate."""
    from accelerate import Accelerator

    accelerated(Accelerator(cpu=True), model, dataset, steps)


def by_lightning(model: nn.Module, dataset: Any, steps: int, pieces: Any = None, **options: Any) -> None:
    """Lightning's Trainer. pieces: optimizer, schedule and loader, if they are others. options: further ones of it."""
    import lightning

    optimizer, schedule, loader = pieces or _parts(model, dataset, steps)

    class Module(lightning.LightningModule):  # type: ignore[misc]  # of which no types are known
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    lightning.Trainer(
        **{"accelerator": "cpu", **options},
        devices=1,
        max_steps=steps,
        max_epochs=-1,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    ).fit(Module(), loader)


LIBRARIES: dict[str, Callable[[nn.Module, Any, int], None]] = {
    "bare": bare,
    "hexloop": by_hexloop,
    "hexloop run": by_takeover,
    "Lightning Fabric": by_fabric,
    "accelerate": by_accelerate,
    "Lightning Trainer": by_lightning,
    "transformers": by_transformers,
}


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard what libraries print."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
