"""A loss in chunks has the value and the gradients of torch's cross entropy, or the model is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hexloop.adapters.trainable.torch.chunked_loss import LEAST_ROWS, ChunkedLoss, TokenCounts
from hexloop.adapters.trainable.torch.pending_logits import PendingLogits, without_pending
from hexloop.domain.errors import ConfigurationError

WIDTH, CLASSES = 6, 11
Loss = Callable[[Any, Tensor], Tensor]


class Decoder(nn.Module):
    """(rows, positions) tokens -> whatever `loss` makes of the logits and the labels."""

    def __init__(self, head: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.words, self.lm_head, self.loss = nn.Embedding(CLASSES, WIDTH), head, loss

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.lm_head(torch.tanh(self.words(tokens))), labels)


class Adapted(nn.Module):
    """A frozen layer with a trained product of two small matrices beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 2), nn.Linear(2, CLASSES)
        self.base.requires_grad_(False)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.base(hidden) + self.up(torch.relu(self.down(hidden)))
        return found


def shifted(logits: Any, labels: Tensor, **given: Any) -> Tensor:
    """Return the loss of each position's prediction of the next label."""
    return functional.cross_entropy(
        logits[..., :-1, :].contiguous().view(-1, CLASSES), labels[..., 1:].reshape(-1), **given
    )


BIAS = torch.linspace(-1, 1, CLASSES, dtype=torch.float64)

LOSSES: dict[str, Loss] = {
    "shifted": shifted,
    "summed": lambda logits, labels: shifted(logits, labels, reduction="sum") / 7,
    "smoothed": lambda logits, labels: shifted(logits, labels, label_smoothing=0.2),
    "capped": lambda logits, labels: shifted(torch.tanh(logits / 2.0) * 2.0, labels),
    "scaled and moved": lambda logits, labels: shifted(
        0.3 * logits.to(labels.device).to(BIAS.dtype) + BIAS[None] - 1.0, labels
    ),
    "module": lambda logits, labels: nn.CrossEntropyLoss()(logits.flatten(0, 1), labels.flatten()),
    "classes second": lambda logits, labels: functional.cross_entropy(logits.transpose(1, 2), labels),
    "permuted": lambda logits, labels: functional.cross_entropy(logits.permute(0, 2, 1), labels),
    "inferred size": lambda logits, labels: functional.cross_entropy(logits.view(labels.numel(), -1), labels.view(-1)),
    "masked": lambda logits, labels: functional.cross_entropy(logits[labels > 3], labels[labels > 3]),
    "last positions": lambda logits, labels: functional.cross_entropy(
        logits[:, -2:, :].flatten(0, 1), labels[:, -2:].flatten()
    ),
    "other ignored label": lambda logits, labels: shifted(logits, labels.clamp(min=0), ignore_index=0),
    "twice": lambda logits, labels: shifted(logits, labels) + 0.5 * shifted(logits * 2, labels),
}
HEADS: dict[str, Callable[[], nn.Module]] = {
    "matrix": lambda: nn.Linear(WIDTH, CLASSES, bias=False),
    "with bias": lambda: nn.Linear(WIDTH, CLASSES),
    "frozen": lambda: nn.Linear(WIDTH, CLASSES).requires_grad_(False),
    "adapted": Adapted,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, CLASSES)),
}


def batch(rows: int, positions: int, ignored: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return tokens and labels, a part of which is ignored."""
    tokens = torch.randint(0, CLASSES, (rows, positions))
    return tokens, torch.where(torch.rand(rows, positions) < ignored, -100, tokens)


def decoder(head: str = "matrix", loss: Loss = shifted) -> Decoder:
    return Decoder(HEADS[head](), loss).double()


def result(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the gradients, by name."""
    model.zero_grad()
    loss = model(*inputs)
    (3.0 * loss).backward()
    return loss.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def assert_same(model: nn.Module, inputs: tuple[Tensor, Tensor], chunked: ChunkedLoss | None = None) -> None:
    """Assert that the loss and all gradients are the same in chunks."""
    plain, gradients = result(model, inputs)
    with (chunked or ChunkedLoss(logits_at_once=1)).of(model):
        found, of_chunks = result(model, inputs)
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=0.0, equal_nan=True)
    torch.testing.assert_close(of_chunks, gradients, rtol=1e-7, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("head", HEADS)
def test_the_loss_and_its_gradients_are_those_of_all_logits(head: str, loss: Loss) -> None:
    """Whatever the output layer is and the model does to its logits, over several chunks, with ignored labels."""
    torch.manual_seed(0)
    assert_same(decoder(head, loss), batch(3, LEAST_ROWS, 0.3))


@given(
    rows=st.integers(1, 4),
    positions=st.integers(2, 70),
    ignored=st.sampled_from([0.0, 0.3, 0.97]),
    seed=st.integers(0, 99),
)
def test_any_number_of_positions(rows: int, positions: int, ignored: float, seed: int) -> None:
    """Also of one position, of parts of a chunk, and of labels that are nearly all ignored."""
    torch.manual_seed(seed)
    tokens, labels = batch(rows, positions, ignored)
    labels[0, -1] = 1
    assert_same(decoder(), (tokens, labels))


def test_without_labels_that_count() -> None:
    """The mean of nothing is nan, as torch's, and gives no gradients."""
    tokens, labels = batch(2, 9, 1.1)
    model = decoder()
    with ChunkedLoss().of(model):
        loss = model(tokens, labels)
    assert loss.isnan()
    (loss.nan_to_num(0.0) * 0.0).backward()
    assert all(each.grad is not None and not each.grad.any() for each in model.parameters())


def test_some_labels_that_count_in_one_row() -> None:
    """A row whose labels are all ignored changes nothing."""
    tokens, labels = batch(3, 9)
    labels[1] = -100
    assert_same(decoder(), (tokens, labels))


def test_an_output_layer_shared_with_the_embeddings() -> None:
    """The gradients of both uses are added."""
    model = decoder()
    model.lm_head.weight = model.words.weight
    assert_same(model, batch(3, 50))


def test_accumulated_gradients_and_hooks() -> None:
    """Gradients are added to those that there are, and hooks of parameters see each gradient once, and whole."""
    torch.manual_seed(0)
    model, inputs = decoder(), batch(3, 100)
    seen: list[Tensor] = []
    weight: Any = model.lm_head.weight
    weight.register_hook(seen.append)
    _, once = result(model, inputs)
    first = once["lm_head.weight"].clone()
    with ChunkedLoss(logits_at_once=1).of(model):
        for _ in range(2):
            (3.0 * model(*inputs)).backward()
    assert len(seen) == 3
    torch.testing.assert_close(model.lm_head.weight.grad, 3 * first)
    torch.testing.assert_close(seen[1], first)


def test_automatic_mixed_precision() -> None:
    """Products are in bfloat16 and the loss in float32, as without chunks."""
    torch.manual_seed(0)
    model, inputs = decoder().float(), batch(3, 100, 0.2)
    with torch.autocast("cpu", torch.bfloat16):
        plain, gradients = result(model, inputs)
        with ChunkedLoss(logits_at_once=1).of(model):
            found, of_chunks = result(model, inputs)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, plain.float(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(of_chunks, gradients, rtol=5e-2, atol=2e-2)
    assert of_chunks["lm_head.weight"].dtype is torch.float32


def test_weights_in_bfloat16() -> None:
    """The gradients have the dtype of the weights, and are summed in float32."""
    torch.manual_seed(0)
    model, inputs = decoder("with bias").bfloat16(), batch(3, 100)
    _, gradients = result(model, inputs)
    with ChunkedLoss(logits_at_once=1).of(model):
        _, of_chunks = result(model, inputs)
    assert {each.dtype for each in of_chunks.values()} == {torch.bfloat16}
    torch.testing.assert_close(of_chunks, gradients, rtol=5e-2, atol=2e-2)


def test_without_gradients() -> None:
    """The same value in an evaluation, which has none."""
    model, inputs = decoder(), batch(2, 70)
    with torch.no_grad():
        plain = model(*inputs)
        with ChunkedLoss().of(model):
            found = model(*inputs)
    torch.testing.assert_close(found, plain)
    assert not found.requires_grad


@pytest.mark.parametrize("head", ["matrix", "adapted"])
def test_dynamic_fine_tuning(head: str) -> None:
    """Each label's negative log-likelihood is weighted by its probability, through which no gradient flows."""

    def weighted(logits: Tensor, labels: Tensor) -> Tensor:
        each = shifted(logits, labels, reduction="none")
        return (each * torch.exp(-each.detach())).sum() / (labels[..., 1:] != -100).sum()

    torch.manual_seed(0)
    inputs = batch(3, 80, 0.3)
    model = decoder(head, weighted)
    plain, gradients = result(model, inputs)
    model.loss = shifted
    with ChunkedLoss("dft", logits_at_once=1).of(model):
        found, of_chunks = result(model, inputs)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(of_chunks, gradients)


def test_labels_and_hits_are_counted() -> None:
    """The counts are those of the labels that count, and of those that were the most probable token."""
    tokens, labels = batch(3, 100, 0.3)
    model, counts = decoder(), TokenCounts()
    with torch.no_grad():
        best = model.lm_head(torch.tanh(model.words(tokens)))[:, :-1].argmax(-1)
        with ChunkedLoss(logits_at_once=1, counts=counts).of(model):
            model(tokens, labels)
    assert counts.labels is not None
    assert counts.correct is not None
    assert int(counts.labels) == int((labels[:, 1:] != -100).sum())
    assert int(counts.correct) == int((best == labels[:, 1:]).sum())


REFUSED: dict[str, Loss] = {
    "calls softmax with its logits": lambda logits, _labels: torch.softmax(logits, -1).sum(),
    "uses 'argmax' of its logits": lambda logits, _labels: logits.argmax(-1),
    "takes some of the classes out": lambda logits, labels: shifted(logits[..., :5], labels),
    "takes some of the classes out ": lambda logits, labels: logits[:, :, 3],
    "so that classes are mixed with positions": lambda logits, _labels: logits.view(-1, 2 * CLASSES),
    "so that classes are mixed with positions ": lambda logits, _labels: logits.flatten(),
    "differs from position to position": lambda logits, labels: shifted(logits * torch.rand(3, 8, CLASSES), labels),
    "or is trained": lambda logits, labels: shifted(logits * nn.Parameter(torch.ones(())), labels),
    "combines logits with each other": lambda logits, labels: shifted(logits + logits, labels),
    "does not reduce it to a mean or a sum": lambda logits, labels: shifted(logits, labels, reduction="none"),
    "weights classes in its cross entropy": lambda logits, labels: shifted(logits, labels, weight=torch.ones(CLASSES)),
    "labels that are no indices of tokens": lambda logits, _: functional.cross_entropy(
        logits.flatten(0, 1), torch.rand(24, CLASSES)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_done_in_chunks_is_refused(reason: str) -> None:
    """The message says what the model or the loss does, and to leave the argument out."""
    model = Decoder(HEADS["matrix"](), REFUSED[reason])
    with (
        pytest.raises(ConfigurationError, match=f"{reason.strip()}.*Leave the argument out"),
        ChunkedLoss().of(model),
    ):
        model(*batch(3, 8))


def test_models_without_an_output_layer_are_refused() -> None:
    """And so are those that have one and do not call it."""
    with pytest.raises(ConfigurationError, match="Linear has neither"), ChunkedLoss().of(nn.Linear(2, 2)):
        pass
    model = Decoder(HEADS["matrix"](), shifted)
    with pytest.raises(ConfigurationError, match="does not call its output layer"), ChunkedLoss().of(model):
        model.words(torch.zeros(1, dtype=torch.long))


def test_the_layer_is_as_before_afterwards() -> None:
    """Also one with a forward of its own, after an error, and after a block within a block."""
    model, inputs = decoder(), batch(2, 8)
    with ChunkedLoss().of(model), ChunkedLoss().of(model):
        model(*inputs)
    assert "forward" not in vars(model.lm_head)
    own = model.lm_head.forward
    calls: list[int] = []

    def counted(hidden: Tensor) -> Any:
        calls.append(len(hidden))
        return own(hidden)

    model.lm_head.forward = counted
    with pytest.raises(ConfigurationError), ChunkedLoss().of(model):
        model.lm_head(torch.zeros(1, 2, WIDTH)).cumsum(0)
    assert vars(model.lm_head)["forward"] is counted
    assert_same(model, inputs)
    assert calls


def test_pending_logits_can_be_computed() -> None:
    """All logits of an output, as they are without chunks."""
    model = decoder("with bias", lambda logits, _labels: {"logits": torch.tanh(logits), "other": 1})  # type: ignore[arg-type, return-value]
    inputs = batch(2, 5)
    plain: Any = model(*inputs)
    with ChunkedLoss().of(model):
        found: Any = model(*inputs)
        pending = found["logits"]
        assert isinstance(pending, PendingLogits)
        assert (pending.shape, pending.ndim, len(pending), pending.size(-1)) == ((2, 5, CLASSES), 3, 2, CLASSES)
        assert (pending.device, pending.requires_grad) == (torch.device("cpu"), True)
    whole = without_pending(found)
    torch.testing.assert_close(whole["logits"], plain["logits"].detach())
    assert whole["other"] == 1
