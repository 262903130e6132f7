"""Further cases: objects that user code prepares during a run, its own Accelerators, saved states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from tests.end_to_end.accelerators.looks import arguments, looked, numbers, plain
from tests.end_to_end.small.models import net, rows
from tests.engines.several.libraries import let_accelerate_take


def distillation(library: Any, folder: Path, **given: Any) -> Any:
    """A teacher that is prepared in the constructor, another one during the run, metrics gathered in every step."""
    seen: list[Any] = []

    if library.__name__ == "hexloop":
        from hexloop import Trainer
    else:
        from transformers import Trainer  # type: ignore[assignment]

    class Distilling(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.teacher = self.accelerator.prepare_model(net(), evaluation_mode=True)
            self.late: Any = None

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if self.late is None:
                self.late = self.accelerator.prepare(nn.Linear(4, 1))
            outputs = model(**inputs)
            with torch.no_grad():
                taught = self.teacher(inputs["x"])["logits"]
                late = self.late(inputs["x"])
            loss = outputs["loss"] + (outputs["logits"] - taught).square().mean()
            rows_ = self.accelerator.gather_for_metrics(outputs["logits"].detach())
            mean = self.accelerator.gather_for_metrics(loss.detach())
            seen.append(plain([
                rows_, mean, self.accelerator.gather(loss.detach()).mean(), self.accelerator.sync_gradients,
                str(taught.dtype), str(late.dtype), str(outputs["logits"].dtype), type(model).__name__,
                type(self.late).__name__, self.accelerator.unwrap_model(model) is self.model,
                self.accelerator.unwrap_model(self.teacher) is self.teacher,
            ]))  # fmt: skip
            return (loss, outputs) if return_outputs else loss

    torch.manual_seed(5)
    trainer = Distilling(
        net(), arguments(library, folder, eval_strategy="epoch", gradient_accumulation_steps=2, **given),
        train_dataset=rows(13), eval_dataset=rows(7),
    )  # fmt: skip
    trainer.train()
    return {**{f"seen {at}": each for at, each in enumerate(seen)}, "numbers": numbers(trainer)}


def own_step(library: Any, folder: Path, **given: Any) -> Any:
    """An overridden training_step with two losses, gradients clipped by value and by norm in it."""
    seen: list[Any] = []

    if library.__name__ == "hexloop":
        from hexloop import Trainer
    else:
        from transformers import Trainer  # type: ignore[assignment]

    class Stepping(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs)
            loss = loss / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss, retain_graph=True)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_value_(model.parameters(), 0.2)
            seen.append(plain([loss, [each.grad for each in model.parameters()], self.accelerator.sync_gradients]))
            return loss.detach()

        def _clip_grad_norm(self, model: Any) -> Any:
            norm = self.accelerator.clip_grad_norm_(model.parameters(), 0.3)
            seen.append(plain(norm))
            return norm

    trainer = Stepping(
        net(), arguments(library, folder, gradient_accumulation_steps=2, **given), train_dataset=rows(16)
    )
    trainer.train()
    return {**{f"seen {at}": each for at, each in enumerate(seen)}, "numbers": numbers(trainer)}


def own_loader(library: Any, folder: Path, **given: Any) -> Any:
    """A loader that the user's code prepares; a run that resumes in its middle."""
    if library.__name__ == "hexloop":
        from hexloop import Trainer
    else:
        from transformers import Trainer  # type: ignore[assignment]

    class Loading(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(DataLoader(self.train_dataset, batch_size=2, shuffle=True))

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return self.accelerator.prepare(DataLoader(self.eval_dataset, batch_size=3))

    def run(**resume: Any) -> Any:
        trainer = Loading(
            net(0.1), arguments(library, folder, num_train_epochs=2, save_strategy="steps", save_steps=3,
                                eval_strategy="epoch", **given),
            train_dataset=rows(13), eval_dataset=rows(7),
        )  # fmt: skip
        trainer.train(**resume)
        return numbers(trainer)

    whole = run()
    return {"whole": whole, "resumed": run(resume_from_checkpoint=str(folder / "checkpoint-3")) == whole}


def saved_state(library: Any, folder: Path) -> Any:
    """save_state in a run, load_state after it; an object that is registered for it."""

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    counter = Counter()
    found: dict[str, Any] = {}

    if library.__name__ == "hexloop":
        from hexloop import TrainerCallback
    else:
        from transformers import TrainerCallback  # type: ignore[assignment]

    class Saving(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            counter.count += 1
            if state.global_step == 2:
                trainer.accelerator.save_state(str(folder / "state"))
                found["saved"] = {name: plain(value) for name, value in trainer.model.state_dict().items()}

    trainer = library.Trainer(net(), arguments(library, folder), train_dataset=rows(8), callbacks=[Saving()])
    trainer.accelerator.register_for_checkpointing(counter)
    hooks: list[Any] = []
    trainer.accelerator.register_save_state_pre_hook(lambda models, weights, output_dir: hooks.append(len(models)))
    trainer.train()
    files = sorted(each.name for each in (folder / "state").iterdir())
    trainer.accelerator.load_state(str(folder / "state"))
    loaded = {name: plain(value) for name, value in trainer.model.state_dict().items()}
    return {
        "files": [each for each in files if each not in ("scheduler.bin", "sampler.bin")],
        "count": counter.count,
        "hooks": hooks,
        "loaded": loaded == found["saved"],
        "optimizer": plain(trainer.optimizer.state_dict()["state"][0]["step"]),
        **found,
    }


def as_dataset(samples: Any) -> Any:
    """Return samples as a dataset."""
    return samples


def own_accelerators(library: Any, folder: Path) -> Any:
    """Accelerators of the user's, assigned before and after a run, and made after it."""
    found: dict[str, Any] = {}

    losses: list[Any] = []

    def backward(self: Any, loss: Any, **kwargs: Any) -> None:
        losses.append(loss)
        Accelerator.backward(self, loss, **kwargs)

    make_counting: Any = type("Counting", (Accelerator,), {"backward": backward})

    for name, before in (("before", True), ("after", False)):
        own = make_counting(cpu=True) if before else None
        trainer = library.Trainer(net(), arguments(library, folder), train_dataset=rows(8))
        if own is not None:
            trainer.accelerator = own
        trainer.train()
        if own is None:
            trainer.accelerator = make_counting(cpu=True)
        found[name] = [numbers(trainer), len(losses), plain(trainer.accelerator.mixed_precision)]
        found[f"{name} evaluates"] = trainer.evaluate(rows(5))["eval_loss"]
    later = Accelerator()
    found["later"] = plain([later.num_processes, str(later.device), later.mixed_precision, later.sync_gradients])
    other = nn.Linear(4, 1)
    model, optimizer = later.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
    for batch in later.prepare(DataLoader(as_dataset(rows(6)), batch_size=2)):
        later.backward(model(batch["x"]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    found["later trains"] = looked(lambda: model.weight.isfinite().all())
    for number in range(3):
        again = library.Trainer(net(), arguments(library, folder, bf16=number == 1), train_dataset=rows(8))
        again.train()
        found[f"trainer {number}"] = [
            numbers(again), plain(again.accelerator.mixed_precision), plain(again.accelerator.state.mixed_precision),
        ]  # fmt: skip
    return found


def configured(library: Any, folder: Path) -> Any:
    """use_configured_state with a state that is made before, and with none."""
    setting = {"accelerator_config": {"use_configured_state": True}}
    found = {"none": looked(lambda: arguments(library, folder, **setting).device)}
    found["none makes a Trainer"] = looked(
        lambda: library.Trainer(net(), arguments(library, folder, **setting)).accelerator.num_processes
    )
    Accelerator(cpu=True, gradient_accumulation_steps=3)
    args = arguments(library, folder, **setting)
    trainer = library.Trainer(net(), args, train_dataset=rows(8))
    found["made"] = plain([
        trainer.accelerator.gradient_accumulation_steps, trainer.accelerator.gradient_state.num_steps,
        str(args.device), args.world_size, trainer.accelerator.mixed_precision,
    ])  # fmt: skip
    trainer.train()
    found["numbers"] = numbers(trainer)
    return found


def tools(library: Any, folder: Path) -> Any:
    """Trackers, profiles, logs and what else accelerate does for its user, around a run."""
    trainer = library.Trainer(net(), arguments(library, folder), train_dataset=rows(8))
    accelerator = trainer.accelerator
    found: dict[str, Any] = {}
    with accelerator.profile() as profile:
        trainer.train()
    found["profile"] = len(profile.key_averages()) > 10
    accelerator.init_trackers("project", config={"rate": 0.1})
    accelerator.log({"loss": 1.0}, step=1)
    tracker = looked(lambda: accelerator.get_tracker("tensorboard").name)
    found["trackers"] = plain([accelerator.trackers, tracker])
    accelerator.save_model(trainer.model, str(folder / "model"))
    found["model"] = sorted(each.name for each in (folder / "model").iterdir())
    accelerator.print("printed")
    found["state dict"] = sorted(accelerator.get_state_dict(trainer.model))
    found["wrapped"] = sorted(accelerator.get_state_dict(trainer.model_wrapped))
    found["verify"] = accelerator.verify_device_map(trainer.model)
    found["named"] = sorted(accelerator._get_named_parameters(trainer.model))
    found["cleared"] = plain(accelerator.clear(trainer.model, 1))
    found["again"] = looked(lambda: trainer.train().global_step)
    found["end"] = plain(accelerator.end_training())
    return json.loads(json.dumps(found))


def own_loop(library: Any, folder: Path, **changed: Any) -> dict[str, Any]:
    """A loop of the user's own over the Trainer's model, optimizer, schedule and loader, accumulating over two."""
    trainer = library.Trainer(net(), arguments(library, folder, **changed), train_dataset=rows(16))
    trainer.create_optimizer_and_scheduler(4)
    accelerator, found = trainer.accelerator, dict[str, Any]()
    accelerator.gradient_accumulation_steps = 2
    prepared = accelerator.prepare(trainer.model, trainer.optimizer, trainer.lr_scheduler)
    found["types"] = [type(each).__name__ for each in prepared]
    model, optimizer, schedule = prepared
    steps = []
    for batch in trainer.get_train_dataloader():
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0) if accelerator.sync_gradients else None
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        steps.append([loss.detach(), norm, schedule.get_last_lr()])
    found["steps"] = plain(whole(steps))
    found["weights"] = plain(whole(model.state_dict()))
    if not accelerator.is_fsdp2:
        accelerator.save_state(str(folder / "state"))
        accelerator.wait_for_everyone()
        found["files"] = sorted(path.name for path in (folder / "state").iterdir())
    return found


def own_loop_fsdp2(library: Any, folder: Path) -> dict[str, Any]:
    """The same loop over a model whose weights are spread over the processes."""
    own: dict[str, Any] = {"reproduce": None, "loss_weighting": "reference"}
    taken = let_accelerate_take("fsdp2") if library.__name__ == "transformers" else own
    taken["fsdp_config"] = {"version": 2, "transformer_layer_cls_to_wrap": ["Linear"]}
    return own_loop(library, folder, fsdp="full_shard", train_sampling_strategy="sequential", **taken)


def whole(values: Any) -> Any:
    """Return lists and dictionaries with the whole tensors in place of those that are spread. Collective."""
    return map_values(lambda value: value.full_tensor() if isinstance(value, DTensor) else value, values)


def map_values(change: Callable[[Any], Any], values: Any) -> Any:
    """Return lists and dictionaries with every value changed."""
    if isinstance(values, dict):
        return {name: map_values(change, value) for name, value in values.items()}
    if isinstance(values, list):
        return [map_values(change, value) for value in values]
    return change(values)
