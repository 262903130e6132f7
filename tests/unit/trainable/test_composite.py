"""Several optimizers behind the interface of one, and Muon with AdamW."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from hexloop.adapters.trainable.torch.composite import CompositeOptimizer, composed, members_of, owner_of
from hexloop.adapters.trainable.torch.muon import MuonWithAdamW


class Layered(nn.Module):
    """An embedding, numbered layers with a norm each, and a head."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 6)
        self.layers: Any = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(2))
        self.head = nn.Linear(6, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        found: Tensor = self.head(hidden)
        return found


def loss_of(model: nn.Module, number: int) -> Tensor:
    tokens = torch.randint(0, 7, (4, 5), generator=torch.Generator().manual_seed(number))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def split(model: Layered) -> tuple[list[Any], list[Any]]:
    return list(model.layers.parameters()), [*model.embed.parameters(), *model.head.parameters()]


def together(model: Layered) -> CompositeOptimizer:
    layers, rest = split(model)
    return CompositeOptimizer({"main": AdamW(rest, lr=0.1), "sgd": SGD(layers, lr=0.2, momentum=0.9)})


def apart(model: Layered) -> list[Optimizer]:
    layers, rest = split(model)
    return [AdamW(rest, lr=0.1), SGD(layers, lr=0.2, momentum=0.9)]


def step(model: nn.Module, optimizers: list[Any], number: int) -> None:
    for each in optimizers:
        each.zero_grad()
    loss_of(model, number).backward()  # type: ignore[no-untyped-call]
    for each in optimizers:
        each.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_step_is_one_of_each() -> None:
    """Rates that are written into the groups reach the optimizers, as those of a schedule."""
    one, other = Layered(), Layered()
    composite, several = together(one), apart(other)
    schedules = [LambdaLR(each, lambda step: 1 / (step + 1)) for each in (composite, *several)]
    for number in range(4):
        step(one, [composite], number)
        step(other, several, number)
        for each in schedules:
            each.step()
    assert same(one, other)
    assert [group["lr"] for group in composite.param_groups] == pytest.approx([0.1 / 5, 0.2 / 5])
    plateau = ReduceLROnPlateau(composite, factor=0.5, patience=0)
    plateau.step(1.0)
    plateau.step(2.0)
    assert [group["lr"] for group in members_of(composite)[1].param_groups] == pytest.approx([0.02])


@pytest.mark.parametrize("kind", ["composite", "muon"])
def test_a_loaded_copy_steps_as_the_first(kind: str) -> None:
    """By a state dict, by a deep copy, and after a group was added to each of the optimizers."""

    def make(model: Layered) -> Any:
        return together(model) if kind == "composite" else MuonWithAdamW(model.layers.parameters(), lr=0.1)

    def add(optimizer: Any, model: Layered) -> None:
        if kind == "muon":
            optimizer.add_param_group({"params": model.head.weight, "lr": 0.5})
            optimizer.add_param_group({"params": [model.embed.weight], "part": "adamw"})

    one, other = Layered(), Layered()
    first, second = make(one), make(other)
    add(first, one)
    add(second, other)
    step(one, [first], 0)
    step(one, [first], 1)
    other.load_state_dict(one.state_dict())
    state = first.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [
        group["params"] for group in second.state_dict()["param_groups"]
    ]
    assert sorted(number for group in state["param_groups"] for number in group["params"]) == [*range(10)]
    second.load_state_dict(deepcopy(state))
    third, copied = deepcopy((one, first))
    for model, optimizer in ((one, first), (other, second), (third, copied)):
        step(model, [optimizer], 2)
    assert same(one, other)
    assert same(one, third)
    assert all(group is own for group, own in zip(
        second.param_groups,
        [owner_of(second, number).param_groups[_place(second, number)] for number in range(len(second.param_groups))],
        strict=True,
    ))  # fmt: skip


def _place(optimizer: CompositeOptimizer, number: int) -> int:
    owner = owner_of(optimizer, number)
    return next(place for place, each in enumerate(owner.param_groups) if each is optimizer.param_groups[number])


def test_state_is_found_by_parameter() -> None:
    """Read, written and deleted where the optimizer of the parameter has it."""
    model = Layered()
    composite = together(model)
    assert not composite.state
    step(model, [composite], 0)
    weight = next(model.layers.parameters())
    assert set(composite.state) == set(model.parameters())
    assert len(composite.state) == 10
    assert set(composite.state[weight]) == {"momentum_buffer"}
    composite.state[weight] = {"momentum_buffer": None}
    assert members_of(composite)[1].state[weight] == {"momentum_buffer": None}
    del composite.state[weight]
    assert weight not in composite.state
    assert nn.Parameter(torch.zeros(1)) not in composite.state


def test_hooks_and_a_closure_are_called_once() -> None:
    model, called = Layered(), list[str]()
    composite = together(model)
    composite.register_step_pre_hook(lambda *_: called.append("before"))
    composite.register_step_post_hook(lambda *_: called.append("after"))

    def closure() -> Tensor:
        called.append("closure")
        return loss_of(model, 0)

    assert composite.step(closure).item() > 0
    assert called == ["before", "closure", "after"]


@pytest.mark.parametrize("group", [{"optimizer": "adam"}, {"params": "taken"}, {"optimizer": "sgd", "params": "taken"}])
def test_a_group_that_no_optimizer_can_have_is_refused(group: dict[str, Any]) -> None:
    model = Layered()
    composite = together(model)
    params = [model.head.weight] if group.get("params") else [nn.Parameter(torch.zeros(2))]
    with pytest.raises(ValueError, match=r"no optimizer 'adam'|more than one parameter group"):
        composite.add_param_group({**group, "params": params})
    assert len(composite.param_groups) == 2


def test_a_shared_parameter_is_refused() -> None:
    model = Layered()
    with pytest.raises(ValueError, match="more than one parameter group"):
        CompositeOptimizer({"a": SGD(model.parameters(), 0.1), "b": AdamW(model.head.parameters())})


def test_a_gradient_scaler_skips_steps_that_overflow() -> None:
    """All optimizers skip, or none."""
    model = Layered()
    composite, scaler = together(model), torch.amp.GradScaler("cpu", init_scale=4.0)
    before = deepcopy(model)
    scaler.scale(loss_of(model, 0)).backward()  # type: ignore[no-untyped-call]
    model.head.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
    scaler.step(composite)
    scaler.update()
    assert same(model, before)
    composite.zero_grad()
    scaler.scale(loss_of(model, 0)).backward()  # type: ignore[no-untyped-call]
    scaler.step(composite)
    other = apart(before)
    step(before, other, 0)
    assert all(torch.allclose(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_modes_are_switched_where_there_are_some() -> None:
    """An optimizer that averages its weights in evaluation is told so; others have no modes."""

    class Switching(SGD):
        mode = ""

        def train(self) -> None:
            self.mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    model = Layered()
    layers, rest = split(model)
    member = Switching(layers, 0.1)
    composite: Any = composed({"a": AdamW(rest), "b": member})
    composite.train()
    assert member.mode == "train"
    composite.eval()
    assert member.mode == "eval"
    assert not hasattr(together(Layered()), "train")
    assert composed({"a": member}) is member


# Muon


def parts(model: nn.Module) -> set[str]:
    named = dict(model.named_parameters())
    return {name for name, part in MuonWithAdamW.parts_of(model, named).items() if part == "muon"}


def test_muon_updates_the_matrices_of_layers() -> None:
    """Not embeddings, norms, biases or the head, also if head and embedding are one."""
    hidden = {"layers.0.0.weight", "layers.1.0.weight"}
    assert parts(Layered()) == hidden

    class Tied(Layered):
        def get_output_embeddings(self) -> nn.Module:
            return self.head

    assert parts(Tied(tied=True)) == hidden


def named(**sizes: tuple[int, int]) -> nn.Module:
    """Return linear layers by name, of so many inputs and outputs."""
    return nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes.items()})


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2)), {"0.weight", "2.weight"}),
        (lambda: nn.Linear(3, 4), set()),
        (lambda: named(a=(3, 3), b=(3, 3), c=(3, 1)), {"a.weight", "b.weight"}),
        (lambda: named(embed_in=(3, 3), a=(3, 3), b=(3, 3)), {"a.weight"}),
    ],
)
def test_the_last_matrix_is_the_output(make: Callable[[], nn.Module], expected: set[str]) -> None:
    assert parts(make()) == expected


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_muon_in_models_of_transformers(kind: str) -> None:
    """Attention and MLP of every layer, and nothing else."""
    transformers = pytest.importorskip("transformers")
    small: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 11, "num_attention_heads": 2}
    if kind == "llama":
        config = transformers.LlamaConfig(**small, intermediate_size=8, num_key_value_heads=2)
        model, matrices = transformers.LlamaForCausalLM(config), 7
    elif kind == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=8)
        model, matrices = transformers.GPT2LMHeadModel(config), 4
    else:
        config = transformers.BertConfig(**small, intermediate_size=8)
        model, matrices = transformers.BertForSequenceClassification(config), 6
    found = parts(model)
    assert len(found) == 2 * matrices
    assert all(".0." in name or ".1." in name for name in found)


def test_muon_with_adamw_is_both_by_hand() -> None:
    """Each with its own rate and decay."""
    one, other = Layered(), Layered()
    matrices = [other.layers[0][0].weight, other.layers[1][0].weight]
    others = [each for each in other.parameters() if all(each is not own for own in matrices)]
    part = MuonWithAdamW.parts_of(one, dict(one.named_parameters()))
    groups = [
        {"params": [each for name, each in one.named_parameters() if part[name] == wanted], "part": wanted}
        for wanted in ("muon", "adamw")
    ]
    ours = MuonWithAdamW(
        groups, lr=0.01, muon_lr=0.05, weight_decay=0.1, muon_weight_decay=0.3, momentum=0.8, ns_steps=3
    )
    by_hand = [
        Muon(matrices, lr=0.05, weight_decay=0.3, momentum=0.8, ns_steps=3, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=0.01, weight_decay=0.1),
    ]
    for number in range(4):
        step(one, [ours], number)
        step(other, by_hand, number)
    assert same(one, other)


def test_muon_divides_groups_without_a_part_by_dimensions() -> None:
    model = Layered()
    optimizer = MuonWithAdamW([{"params": model.parameters(), "lr": 0.3}])
    sizes = {group["part"]: len(group["params"]) for group in optimizer.param_groups}
    assert sizes == {"adamw": 6, "muon": 4}
    assert {group["lr"] for group in optimizer.param_groups} == {0.3}
    with pytest.raises(ValueError, match="empty"):
        MuonWithAdamW([])
