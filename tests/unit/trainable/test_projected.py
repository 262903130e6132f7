"""Which weights GaLore and APOLLO project, and their parameter groups."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hexloop import ConfigurationError
from hexloop.adapters.trainable.torch.decay_groups import decayed_names, parameter_groups
from hexloop.adapters.trainable.torch.optimizers import build_optimizer, choose_optimizer
from hexloop.adapters.trainable.torch.projected import ProjectedGroups, refuse_settings, target_weights

SETTINGS = {"rank": 2, "update_proj_gap": 3, "scale": 0.25, "proj_type": "std"}
LINEAR = ("layers.0.attention.q_proj", "layers.0.attention.v_proj", "layers.0.mlp", "layers.1", "norm_head", "head")


def model() -> nn.Module:
    """Return a model with linear layers of the names `LINEAR`, an embedding, a norm and a convolution."""
    made = nn.Module()
    made.embed = nn.Embedding(8, 4)
    block = nn.Module()
    block.attention = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "v_proj": nn.Linear(4, 4)})
    block.mlp = nn.Linear(4, 6, bias=False)
    made.layers = nn.ModuleList([block, nn.Linear(6, 4)])
    made.norm_head = nn.Linear(4, 4)
    made.convolution = nn.Conv1d(4, 4, 1)
    made.head = nn.Linear(4, 8)
    return made


def selected(targets: Any, of: nn.Module | None = None) -> set[str]:
    of = model() if of is None else of
    found = target_weights(of, targets, "galore_adamw")
    return {name.removesuffix(".weight") for name, each in of.named_parameters() if id(each) in found}


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("all-linear", LINEAR),
        ("all_linear", LINEAR),
        (["q_proj"], LINEAR[:1]),
        (["attention", "mlp"], LINEAR[:3]),
        (["layers.1"], LINEAR[3:4]),
        (r".*\.[qv]_proj", LINEAR[:2]),
        ([r"layers\.\d+", "q_proj"], [LINEAR[0], LINEAR[3]]),
        ("head", ["head"]),
        (["head"], ["norm_head", "head"]),
        (["q_proj", "["], LINEAR[:1]),
    ],
)
def test_targets(targets: Any, names: tuple[str, ...]) -> None:
    """An expression matches a whole name; an entry of a list may also be a part of it."""
    assert selected(targets) == set(names)


def test_frozen_and_wrapped_weights() -> None:
    """Frozen weights are not projected, and names are those of the model inside wrappers."""
    made = model()
    made.get_parameter("layers.1.weight").requires_grad_(False)
    assert selected("all-linear", made) == set(LINEAR) - {"layers.1"}
    compiled: Any = torch.compile(made)
    assert len(target_weights(compiled, "head", "galore_adamw")) == 1


def test_other_layers_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Modules with weights that are not linear are named; modules that only contain others are not."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        assert selected(["embed", "convolution", "attention"]) == set(LINEAR[:2])
    (said,) = caplog.messages
    assert "embed (Embedding) and convolution (Conv1d), which are not projected" in said
    caplog.clear()
    selected("all-linear")
    assert not caplog.messages


@pytest.mark.parametrize(
    ("targets", "problem"),
    [
        (None, "needs optim_target_modules"),
        ([], "needs optim_target_modules"),
        (["attn"], "selects no linear layer with a trainable weight of the Module: its linear layers are layers.0"),
        ("q_proj", "selects no linear layer"),
        (["embed"], "selects no linear layer"),
        ("(", "is not a valid regular expression"),
        ([1], "is not text or a list of texts"),
        ("a" * 501, "at most 1000 of 500 characters"),
        (["a"] * 1001, "at most 1000 of 500 characters"),
        (r"((\w|\.|_)+)+!", "takes too long"),
    ],
)
def test_what_is_refused(targets: Any, problem: str) -> None:
    """Each refusal names a way out."""
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        selected(targets)


@given(st.lists(st.sampled_from(LINEAR), min_size=1, unique=True), st.floats(0.0, 1.0), st.booleans())
def test_groups_keep_the_weight_decay(targets: list[str], decay: float, decays: bool) -> None:
    """Every trainable parameter is in one group, with its own decay, and with the settings if it is projected."""
    made = model()
    made.get_parameter("embed.weight").requires_grad_(False)
    chosen = target_weights(made, targets, "galore_adamw")
    groups = ProjectedGroups(made, targets, SETTINGS, decay, "galore_adamw", decays)
    decayed = decayed_names(made)
    assert groups == groups.decayed(decayed, decay)
    assert all(group["params"] for group in groups)
    expected = parameter_groups(made, decayed if decays else [], decay)
    of = {id(each): group["weight_decay"] for group in expected for each in group["params"]}
    seen = [id(each) for group in groups for each in group["params"]]
    assert sorted(seen) == sorted(of)
    for group in groups:
        for each in group["params"]:
            assert group["weight_decay"] == of[id(each)]
            assert {**SETTINGS, **group} == group if id(each) in chosen else "rank" not in group


def test_names_of_the_user_decide_on_the_decay() -> None:
    """An override of `get_decay_parameter_names` moves projected weights, too."""
    pytest.importorskip("galore_torch")
    made = model()
    kind, options = choose_optimizer(
        "galore_adamw",
        1e-3,
        (0.8, 0.99),
        1e-7,
        "rank=3, proj_type=right",
        "cpu",
        model=made,
        target_modules=["q_proj", "v_proj"],
        weight_decay=0.1,
    )
    optimizer = build_optimizer(made, kind, options, ["layers.0.attention.q_proj.weight"], 0.1)
    found = [(len(group["params"]), group["weight_decay"], group.get("rank")) for group in optimizer.param_groups]
    assert found == [(12, 0.0, None), (1, 0.1, 3), (1, 0.0, 3)]
    assert all(group["betas"] == (0.8, 0.99) and group["eps"] == 1e-7 for group in optimizer.param_groups)
    assert optimizer.param_groups[-1]["proj_type"] == "right"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rank": 0}, "rank=0 is not a number from 1 on"),
        ({"update_proj_gap": -1}, "update_proj_gap=-1 is not a number from 1 on"),
        ({"proj_type": "up"}, "proj_type='up' is not one of std, reverse_std, right, left, full"),
        ({"proj": "sparse"}, "proj='sparse' is not one of random, svd"),
        ({"scale_type": "row"}, "scale_type='row' is not one of channel, tensor"),
        ({"proj": "random", "proj_type": "full"}, "needs proj='svd'"),
    ],
)
def test_settings_that_do_not_exist(given: dict[str, Any], problem: str) -> None:
    """They are refused before the first step."""
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        refuse_settings({**SETTINGS, **given}, "apollo_adamw")


def test_unknown_and_mistyped_options() -> None:
    """Options are typed; an unknown one is refused with the nearest."""
    pytest.importorskip("apollo_torch")
    for text, problem in (("rnak=4", "did you mean rank"), ("rank=four", "rank=four is not valid")):
        with pytest.raises(ConfigurationError, match=problem):
            choose_optimizer(
                "apollo_adamw", 1e-3, (0.9, 0.999), 1e-8, text, "cpu", model=model(), target_modules="all-linear"
            )


def test_galore_in_8_bits_needs_a_gpu() -> None:
    """On a CPU it is refused with the reason; elsewhere it is made with its groups."""
    pytest.importorskip("galore_torch")
    given: dict[str, Any] = {"model": model(), "target_modules": "all-linear", "weight_decay": 0.1}
    for name in ("galore_adamw_8bit", "galore_adamw_8bit_layerwise"):
        with pytest.raises(ConfigurationError, match=r"runs on cuda only.*choose galore_adamw"):
            choose_optimizer(name, 1e-3, (0.9, 0.999), 1e-8, None, "cpu", **given)
        kind, options = choose_optimizer(name, 1e-3, (0.8, 0.99), 1e-7, "rank=2", "cuda", **given)
        assert kind.__name__ == "AdamW8bit"
        assert (options["betas"], options["eps"]) == ((0.8, 0.99), 1e-7)
        assert [group.get("rank") for group in options["params"]] == [None, None, 2]
