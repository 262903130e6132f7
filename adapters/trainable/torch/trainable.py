"""A torch module, its loss and its optimizer, as the pieces of a training step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.gradients import Gradients
from hexloop.adapters.trainable.torch.items import at_least_one, item_count, nothing, number_on_host, share
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.loss import ComputeLoss
from hexloop.adapters.trainable.torch.world import ALONE, PendingCount, World, settled
from hexloop.ports.batches import Padding


class TorchTrainable:
    """Answers the Trainable port for a module and an optimizer.

    model: the module as it is called in training (wrapped, compiled). inner: the one within it that code of the user's
    holds, and may leave in evaluation mode; the model itself where None. restore_modes: puts the modules back in
    the modes that they had before an evaluation, if there was one.
    compute_loss: from module and batch to loss. `normalises` says that it divides by the item count that it is given;
    what it gives otherwise is a mean, which `exact` weighs by its items within its window; without, each batch of the
    window weighs the same.
    shifted: the loss compares each position with the label after it.
    world: the processes that each compute a share of every window. layout: where the model's parameters lie.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        compute_loss: ComputeLoss,
        *,
        normalises: bool = False,
        exact: bool = True,
        label_names: Sequence[str] = ("labels",),
        shifted: bool = False,
        world: World = ALONE,
        layout: TorchLayout = WHOLE,
        inner: nn.Module | None = None,
        restore_modes: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._inner = model if inner is None else inner
        self._restore_modes = restore_modes
        self._compute_loss = compute_loss
        self._normalises = normalises
        self._exact = exact
        self._label_names = tuple(label_names)
        self._shifted = shifted
        self._world = world
        self._counted: deque[tuple[Any, Tensor | int]] = deque()
        self._gradients = Gradients(model.parameters(), layout)
        self.clip = self._gradients.clip
        self.clear_gradients = self._gradients.clear

    def count_items(self, window: Sequence[Any]) -> Tensor | int | PendingCount | None:
        """The items of the window over all processes, on the device; None where every loss weighs what it should.

        For a mean under equal weights the count is that of the window's batches. Where only the weight of a mean needs
        the count, the processes add it up beside the forward pass: see `settled`.
        """
        if self._normalises:
            all_items: Tensor | int = settled(self._world.total(sum(self._items(batch) for batch in window)))
            return at_least_one(all_items)
        if self._exact and (len(window) > 1 or self._world.size > 1):
            self._counted = deque((batch, number_on_host(self._items(batch))) for batch in window)
            return self._world.total(sum(items for _, items in self._counted))
        batches = len(window) * self._world.size
        return None if batches == 1 else batches

    def loss(self, batch: Any, window_items: Any) -> Tensor:
        """The batch's share of the window's loss."""
        self.enter_training_mode()
        loss: Tensor
        if self._normalises:
            loss = self._compute_loss(self.model, batch, num_items_in_batch=window_items)
        else:
            loss = self._compute_loss(self.model, batch)
            items = settled(window_items)
            if items is not None:
                loss = share(loss, self._items_counted(batch), items) if self._exact else loss / items
        return nothing(loss) if isinstance(batch, Padding) else loss

    def enter_training_mode(self) -> None:
        """Put the whole model in training mode where it was left in the other. A part of it alone is let alone."""
        if not self._inner.training:
            self._restore_modes()
            if not self._inner.training:
                self.model.train()

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Write one rate into each parameter group."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def detached(self, loss: Tensor) -> Tensor:
        """The loss without its graph."""
        return loss.detach()

    def _items_counted(self, batch: Any) -> Tensor | int:
        """The items of a batch as its window was counted, before anybody took the labels out of it."""
        while self._counted:
            counted, items = self._counted.popleft()
            if counted is batch:
                return items
        return self._items(batch)

    def _items(self, batch: Any) -> Tensor | int:
        return item_count(batch, self._label_names, self._shifted)
