"""Trains in a local task of Flyte, and again in a second one from what the first stored; prints what both have."""

from __future__ import annotations

import json
from pathlib import Path

from flytekit import current_context, task
from flytekit.core.checkpointer import SyncCheckpoint
from training import Failing, Model, Points

from hexloop import FlyteCallback, Trainer, TrainingArguments


@task(enable_deck=True)
def train(stored: str, fails: bool) -> str:
    """Train as the documentation of Flyte says, and return where the checkpoint is, and the deck."""
    checkpoint = SyncCheckpoint(current_context().checkpoint._checkpoint_dest, stored or None)
    restored = checkpoint.restore() if stored else None
    arguments = TrainingArguments(
        "again" if stored else "out", max_steps=8, logging_steps=2, save_steps=4, use_cpu=True, disable_tqdm=True
    )
    callbacks = [FlyteCallback(), *([Failing()] if fails else [])]
    trainer = Trainer(Model(), arguments, train_dataset=Points(), callbacks=callbacks)
    try:
        trainer.train(resume_from_checkpoint=restored and str(restored))
    except ValueError as error:
        print(error)
    decks = {deck.name: deck.html for deck in current_context().decks}
    kept = Path(f"kept-{fails}")  # the folder of a local task is removed at its end
    Path(checkpoint._checkpoint_dest).rename(kept)
    found = {"stored": str(kept), "deck": decks["Log History"], "steps": trainer.state.global_step}
    return json.dumps({**found, "first": trainer.state.log_history[0]["step"]})


if __name__ == "__main__":
    first = json.loads(train(stored="", fails=True))
    second = json.loads(train(stored=first["stored"], fails=False))
    print(json.dumps([first, second]))
