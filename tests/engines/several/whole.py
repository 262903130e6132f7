"""Full weights and gradients, as in a single process, of a model wrapped by an engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

WRAPPINGS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class KeepingGradients:
    """Callback for either library that writes the gradients of the first updates to the run's folder."""

    trainer: Any
    updates = 1

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step < self.updates:
            self.keep(args.output_dir, state.global_step)

    def keep(self, folder: str, update: int) -> None:
        """Write the current gradients."""
        found = whole_gradients(self.trainer.model_wrapped)
        if self.trainer.is_world_process_zero():
            save_file(found, gradients_file(folder, update))


class KeepingGradientsOfDeepSpeed(KeepingGradients):
    """The same before DeepSpeed's own step, for libraries that run it before their callbacks."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step > 0:
            return
        engine = self.trainer.model_wrapped
        step = engine.step

        def keep_and_step(*words: Any, **named: Any) -> Any:
            del engine.step
            self.keep(args.output_dir, 0)
            return step(*words, **named)

        engine.step = keep_and_step

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        pass


def gradients_file(folder: str | Path, update: int) -> Path:
    """Return the path of the gradients of an update, counted from 0."""
    return Path(folder) / f"gradients-{update}.safetensors"


def kept_gradients(folder: Path, update: int = 0) -> dict[str, Tensor]:
    """Return the gradients of an update by name; empty if none were written."""
    file = gradients_file(folder, update)
    return load_file(file) if file.exists() else {}


def whole_gradients(wrapped: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of each parameter, by its name in the user's model. Call it on all processes together."""
    read = _gradient_in_deepspeed if _is_deepspeed(wrapped) else _gradient
    return _whole(wrapped, read, _gathered_by_fsdp(wrapped))


def whole_weights(wrapped: nn.Module) -> dict[str, Tensor]:
    """Return each parameter, likewise."""
    gathered = _gathered_by_deepspeed(wrapped) if _is_deepspeed(wrapped) else _gathered_by_fsdp(wrapped)
    return _whole(wrapped, lambda parameter: parameter, gathered)


def _whole(
    wrapped: nn.Module, read: Callable[[nn.Parameter], Tensor | None], gathered: AbstractContextManager[Any]
) -> dict[str, Tensor]:
    with gathered:
        found = {_plain(name): read(parameter) for name, parameter in wrapped.named_parameters()}
        return {name: _of_all(each).detach().clone() for name, each in found.items() if each is not None}


def _of_all(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _gradient(parameter: nn.Parameter) -> Tensor | None:
    return parameter.grad


def _gradient_in_deepspeed(parameter: nn.Parameter) -> Tensor | None:
    from deepspeed.utils import safe_get_full_grad

    return safe_get_full_grad(parameter)  # type: ignore[no-any-return]


def _gathered_by_fsdp(wrapped: nn.Module) -> AbstractContextManager[Any]:
    if isinstance(wrapped, FullyShardedDataParallel):
        return FullyShardedDataParallel.summon_full_params(wrapped, writeback=False, with_grads=True)
    return nullcontext()


def _gathered_by_deepspeed(wrapped: nn.Module) -> AbstractContextManager[Any]:
    from deepspeed.runtime.zero import GatheredParameters

    return GatheredParameters(list(wrapped.parameters()))  # type: ignore[no-any-return]


def _is_deepspeed(wrapped: nn.Module) -> bool:
    return type(wrapped).__name__ == "DeepSpeedEngine"


def _plain(name: str) -> str:
    for wrapping in WRAPPINGS:
        name = name.replace(wrapping, "")
    return name.removeprefix("module.")
