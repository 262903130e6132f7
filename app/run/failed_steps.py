"""What is added to an error in a step or an evaluation, such as one of torch's: which batch it was, and what to try."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import evolve

from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.errors import HexloopError
from hexloop.domain.run import FailedStep, Run
from hexloop.domain.wording import enumeration, troubleshooting

NAMED = 8
"""How many samples and inputs of a batch are named."""

ADVICE = (
    (
        "device-side assert",
        "A label or token may be outside of the range that the model was built for. Errors of the device come late: "
        "with use_cpu=True the same batch names the operation and the value.",
    ),
    (
        r"expects each tensor to be equal size|storage that is not resizable|unable to create tensor",
        "Samples of a batch differ in size: pass a data_collator that pads them, such as transformers' "
        "DataCollatorWithPadding, or cut all to one length.",
    ),
    (
        r"out of (bounds|range)",
        "A label or token is outside of the range that the model was built for: compare the largest label with the "
        "model's number of labels, and the largest token with the size of its vocabulary.",
    ),
    (
        r"same device|on cuda|different device",
        "A tensor is on another device than the model: move what a loss or a collator makes to trainer.args.device.",
    ),
    (
        r"dtype|scalar type|not implemented for '\w+'|expected .*(float|long|int|double|half|bfloat)",
        "A tensor has a type that the operation does not take: labels of classes are torch.int64, and other labels and "
        "inputs have the type of the model's weights.",
    ),
    (
        r"shape|size|dimension",
        "Shapes do not fit: compare those of this batch with what the model takes; a collator pads and cuts samples.",
    ),
    (
        "unexpected keyword argument",
        "The model does not take an input of that name: rename or remove the column, or leave remove_unused_columns "
        "on.",
    ),
)
"""From what an error says, in lower case, to what to try; the first row that fits."""


def explain_failed_steps(parts: TrainerParts, run: Run[Any, Any], loader: Any) -> None:
    """Let errors in the steps of a run receive a note. Steps without an error cost nothing."""
    run.explain = partial(add_note, parts.args, parts.adapters, loader)


def add_note(args: Any, adapters: Any, loader: Any, error: Exception, failed: FailedStep[Any]) -> None:
    """Add to an error in a step where it happened and what to try; type, message and traceback stay as they are."""
    if isinstance(error, HexloopError):  # says itself what to do
        return
    with suppress(Exception):  # the error matters more than what is said about it
        is_out_of_memory = adapters.device.is_out_of_memory(error)
        advice = _memory_advice(args, adapters.device.name) if is_out_of_memory else _advice(error)
        ranks = adapters.mesh.data
        if failed.in_reading:
            samples = args.train_batch_size * ranks.size * failed.count
            failed = evolve(failed, place=evolve(failed.place, samples=samples))
        error.add_note(f"{_where(failed, loader, ranks)} {advice}".strip())


def add_note_of_evaluation(args: Any, adapters: Any, error: Exception, number: int, batch: Any) -> None:
    """Add to an error in the batch of an evaluation where it happened and what to try. number: from 1 on."""
    if isinstance(error, HexloopError):
        return
    with suppress(Exception):
        advice = _advice(error)
        if adapters.device.is_out_of_memory(error):
            advice = _memory_advice_for_evaluation(args, adapters.device.name)
        ranks = adapters.mesh.data
        rank = f" of rank {ranks.rank}" if ranks.size > 1 else ""
        error.add_note(f"In batch {number} of an evaluation{rank}{_shapes(batch)}. {advice}")


def _where(failed: FailedStep[Any], loader: Any, ranks: Any) -> str:
    step = f"In optimizer step {failed.step} of {failed.steps}"
    if failed.in_reading:
        step += ", while its batches were read"
    elif failed.in_update:
        step += ", in the update of the weights"
    elif failed.count > 1:
        step += f", in micro-batch {failed.number} of {failed.count}"
    rank = f" of rank {ranks.rank}" if ranks.size > 1 else ""
    shapes = _shapes(failed.batch)
    place = failed.place
    last = place.position + max(1, place.samples) - 1
    at = f"position {last}" if last == place.position else f"positions {place.position} to {last}"
    if failed.in_reading:  # there may be fewer
        at = f"from position {place.position} on"
    return f"{step}{rank}{shapes}: {_samples(failed, loader)}{at} in the order of epoch {place.epoch}."


def _shapes(batch: Any) -> str:
    """Return the shapes and types of a batch's inputs, in parentheses; nothing if it has none."""
    if not isinstance(batch, Mapping):
        return ""
    shown = [
        f"{name} {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for name, value in list(batch.items())[:NAMED]
        if hasattr(value, "shape") and hasattr(value, "dtype")
    ]
    return f" ({', '.join(shown)})" if shown else ""


def _samples(failed: FailedStep[Any], loader: Any) -> str:
    """Return which samples of the data a batch has; nothing if another loader than hexloop's own decides on them."""
    order = getattr(loader, "order", None)
    indices_at = getattr(order, "indices_at", None)
    if indices_at is None:
        return ""
    indices = _of_this_rank(order, indices_at(failed.place.epoch, failed.place.position, failed.place.samples))
    if not indices:
        return ""
    plain = [str(each) for each in indices[:NAMED]]
    if (further := len(indices) - NAMED) > 0:
        plain.append(f"{further} more")
    exact = "rows" if getattr(order, "has_one_size", False) and not failed.in_reading else "among rows"
    return f"{exact} {enumeration(plain)} of train_dataset, "


def _of_this_rank(order: Any, indices: Sequence[Any]) -> Sequence[Any]:
    """Return this rank's samples, of each batch its part; all samples if the ranks have batches of several sizes."""
    if not getattr(order, "has_one_size", False):
        return indices
    size, found = order.batch_size, list[Any]()
    for start in range(0, len(indices), size):
        batch = indices[start : start + size]
        mine = order.shard.of(range(len(batch)), size)
        found += batch[mine.start : mine.stop]
    return found


def _advice(error: Exception) -> str:
    text = str(error).lower()
    if "original traceback" in text:  # of a worker of the loader; its lines of code are no reasons
        text = text.rstrip().rpartition("\n")[2]
    advice = next((f"{advice} " for pattern, advice in ADVICE if re.search(pattern, text)), "")
    return f"{advice}{troubleshooting('error in a step').capitalize()}."


def _memory_advice(args: Any, device: str) -> str:
    """Return what makes a step need less memory and is not set yet."""
    size, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    tries = []
    if size > 1:
        smaller = -(-size // 2)
        tries.append(
            f"set per_device_train_batch_size={smaller} (now {size}) and gradient_accumulation_steps="
            f"{-(-size * accumulation // smaller)}, which trains the same"
        )
    if not (args.gradient_checkpointing or args.activation_checkpointing):
        tries.append("set gradient_checkpointing=True")
    if not args.auto_find_batch_size:
        tries.append("let auto_find_batch_size=True find a size that fits")
    if not tries:
        tries.append("train a smaller model, or in fewer bits")
    return f"{device} ran out of memory: {enumeration(tries, 'or')}; {troubleshooting('out of memory')}."


def _memory_advice_for_evaluation(args: Any, device: str) -> str:
    """Return what makes an evaluation need less memory and is not set yet."""
    size, tries = args.per_device_eval_batch_size, []
    if size > 1:
        tries.append(f"set per_device_eval_batch_size={size // 2} (now {size})")
    if not args.prediction_loss_only:
        tries.append(
            "keep less of the predictions with preprocess_logits_for_metrics, or set prediction_loss_only=True"
        )
    if not (args.bf16_full_eval or args.fp16_full_eval):
        tries.append("set bf16_full_eval=True")
    if not tries:
        tries.append("evaluate on a device with more memory")
    return f"{device} ran out of memory: {enumeration(tries, 'or')}; {troubleshooting('out of memory')}."
