"""The internal methods of the reference library that subclasses override, called here where they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hexloop.adapters.batches.torch.transfer import copied, transfer_to
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training import boundaries, saving
from hexloop.app.training.hooks import standard
from hexloop.app.training.internals import INSTEAD
from hexloop.domain.errors import RunStateError

if TYPE_CHECKING:
    from hexloop.app.trainer.trainer import Trainer
    from hexloop.app.training.session import Session


class Seams(TrainerAttributes):
    """What each does unless it is overridden, for an override that calls it."""

    @standard
    def _prepare_inputs(self, inputs: Any) -> Any:
        """A copy of a batch's mapping, with its tensors on the device.

        Overridden, it is asked for every micro-batch of a step and of an evaluation.
        """
        return transfer_to(self.adapters.device.name, non_blocking=True)(copied(inputs))

    @standard
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the model's files; `state_dict` in place of its own weights. Overridden, `save_model` asks it."""
        saving.save_model(cast("Trainer", self), output_dir or str(self.args.output_dir), state_dict)

    @standard
    def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
        """Take a checkpoint of the run as it stands, published when this returns.

        Overridden, it is what happens when a save is due. Raises RunStateError where no run is live.
        """
        boundaries.take_checkpoint(self._live("_save_checkpoint"))

    @standard
    def _load_best_model(self) -> None:
        """Put the weights of the best checkpoint in force. Raises RunStateError where no run is live."""
        boundaries.load_best(self._live("_load_best_model"))

    @standard
    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save what is due at this boundary. Raises RunStateError where no run is live.

        Overridden, it is asked after every optimizer step and every epoch, as one opaque action; what it leaves
        undone is not done. tr_loss: the loss of the last step, on its device.
        """
        boundaries.do_what_is_due(cast("Trainer", self), self._live("_maybe_log_save_evaluate"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """No such attribute; for an internal method of the reference library the error says what to use."""
            known = f": {INSTEAD[name]}" if name in INSTEAD else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{known}")

    def _live(self, method: str) -> Session:
        if self._session is None:
            raise RunStateError(f"{method} belongs to a live run; call train() or stream() instead.")
        return self._session
