"""AdamW for weights of 16 bits: its updates, Kahan summation and stochastic rounding."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hexloop.adapters.trainable.torch import any_precision
from hexloop.adapters.trainable.torch.any_precision import AnyPrecisionAdamW, stochastically_rounded
from hexloop.adapters.trainable.torch.optimizers import choose_optimizer
from hexloop.domain.errors import ConfigurationError

KAHAN: dict[str, Any] = {"use_kahan_summation": True}
STOCHASTIC: dict[str, Any] = {"rounding": "stochastic"}


def drifting(
    dtype: torch.dtype, steps: int, make: Callable[..., torch.optim.Optimizer] = AnyPrecisionAdamW, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return 512 weights of about 1 after steps whose gradients all have one sign, so that every update is 1e-4.

    The second result is what is kept of each besides.
    """
    source = torch.Generator().manual_seed(0)
    weight = nn.Parameter((1 + torch.rand(16, 32, generator=source) / 4).bfloat16().to(dtype))
    optimizer = make([weight], lr=1e-4, weight_decay=0.0, **options)
    for _ in range(steps):
        weight.grad = torch.rand(weight.shape, generator=source).add_(0.5).to(dtype)
        optimizer.step()
    kept = optimizer.state.get(weight, {}).get("compensation", torch.zeros(()))
    return weight.detach().float(), kept.float()


def test_weights_of_32_bits_are_updated_as_by_adamw() -> None:
    """Twenty steps of random gradients, with and without decay, in two groups."""

    def trained(make: Callable[..., torch.optim.Optimizer]) -> list[Tensor]:
        source = torch.Generator().manual_seed(1)
        weights = [nn.Parameter(torch.randn(size, generator=source)) for size in ((5, 3), (7,), ())]
        groups = [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "weight_decay": 0.0}]
        optimizer = make(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-6)
        for step in range(20):
            for weight in weights:
                weight.grad = None if step == 3 and weight.ndim == 0 else torch.randn(weight.shape, generator=source)
            optimizer.step()
        return [weight.detach() for weight in weights]

    for ours, theirs in zip(trained(AnyPrecisionAdamW), trained(torch.optim.AdamW), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_plain_bfloat16_stalls_and_both_remedies_do_not() -> None:
    """200 updates of 1e-4 move a weight of 1 by 0.02: lost by rounding to the nearest, kept by the others.

    With Kahan summation, the weights and what is kept of them follow a run in float32 to 2 % of the way, and to 0.1 %
    if float32 keeps it; what is kept is at most half a step of bfloat16. Rounded at random, the mean over all weights
    follows it to 3 %.
    """
    start, _ = drifting(torch.bfloat16, 0)
    precise, _ = drifting(torch.float32, 200, torch.optim.AdamW)
    way = (start - precise).mean().item()
    assert way == pytest.approx(0.02, rel=0.05)
    assert torch.equal(drifting(torch.bfloat16, 200)[0], start)
    for options, tolerance in ((KAHAN, 0.02), ({**KAHAN, "compensation_buffer_dtype": "float32"}, 0.001)):
        weights, kept = drifting(torch.bfloat16, 200, **options)
        assert kept.abs().max().item() <= 2.0**-8
        assert (weights + kept - precise).abs().max().item() <= tolerance * way
    random, _ = drifting(torch.bfloat16, 200, **STOCHASTIC)
    assert (random - precise).mean().abs().item() <= 0.03 * way
    assert (random - precise).abs().max().item() < 3 * way


def test_kahan_summation_keeps_weight_decay() -> None:
    """A decay that is too small for bfloat16 acts all the same, also without gradients."""

    def decayed(dtype: torch.dtype, **options: Any) -> float:
        weight = nn.Parameter(torch.ones(64, dtype=dtype))
        optimizer = AnyPrecisionAdamW([weight], lr=0.01, weight_decay=0.01, **options)
        for _ in range(300):
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
        return float(weight.detach().float().mean())

    assert decayed(torch.bfloat16) == 1.0
    expected = (1 - 1e-4) ** 300
    assert decayed(torch.bfloat16, **KAHAN) == pytest.approx(expected, abs=2**-8)
    assert decayed(torch.bfloat16, **STOCHASTIC) == pytest.approx(expected, abs=2**-7)
    assert decayed(torch.float16, **KAHAN) == pytest.approx(expected, abs=2**-11)


def test_moments_are_kept_as_asked() -> None:
    """In float32 by default, as transformers asks for; otherwise as named. Only 16 bits need a compensation."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    kept = {"momentum_dtype": "bfloat16", "variance_dtype": torch.bfloat16, "compensation_buffer_dtype": "float32"}
    for options, expected in (
        ({}, {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}),
        (KAHAN, {"exp_avg": torch.float32, "exp_avg_sq": torch.float32, "compensation": torch.bfloat16}),
        (
            {**KAHAN, **kept},
            {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16, "compensation": torch.float32},
        ),
    ):
        optimizer = AnyPrecisionAdamW([weight], **options)
        optimizer.step()
        state = optimizer.state[weight]
        assert {name: value.dtype for name, value in state.items() if name != "step"} == expected
        assert state["step"] == 1
    precise = nn.Parameter(torch.ones(3))
    precise.grad = torch.ones(3)
    optimizer = AnyPrecisionAdamW([precise], use_kahan_summation=True)
    optimizer.step()
    assert optimizer.state[precise].keys() == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("options", [{}, KAHAN], ids=["nearest", "Kahan"])
def test_chunks_change_nothing(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters may be updated together or one by one, also those of several types."""

    def trained() -> list[Tensor]:
        source = torch.Generator().manual_seed(2)
        dtypes = (torch.bfloat16, torch.float32, torch.bfloat16, torch.bfloat16)
        weights = [nn.Parameter(torch.randn(40, generator=source).to(dtype)) for dtype in dtypes]
        optimizer = AnyPrecisionAdamW(weights, lr=0.01, weight_decay=0.1, **options)
        for _ in range(5):
            for weight in weights:
                weight.grad = torch.randn(40, generator=source).to(weight.dtype)
            optimizer.step()
        return [weight.detach() for weight in weights]

    together = trained()
    monkeypatch.setattr(any_precision, "CHUNK", 1)
    assert all(map(torch.equal, together, trained()))


def test_a_closure_is_called() -> None:
    """Its loss is returned, and its gradients are used."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = AnyPrecisionAdamW([weight], lr=0.1)

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    assert optimizer.step(closure) == 2.0
    assert torch.allclose(weight.detach(), torch.full((2,), 0.9))


# Stochastic rounding

LARGE_AND_SMALL = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda value: abs(value) > 1e-30)


@settings(max_examples=40)
@given(
    value=st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda value: abs(value) > 1e-30),
    seed=st.integers(0, 2**32),
)
def test_rounding_at_random_is_unbiased(value: float, seed: int) -> None:
    """The mean over 4096 draws is the number, within six standard errors; each draw is one of its two neighbours."""
    count = 4096
    values = torch.full((count,), value, dtype=torch.float32)
    drawn = stochastically_rounded(values, torch.Generator().manual_seed(seed))
    assert drawn.dtype == torch.bfloat16
    precise = drawn.double()
    below, above = float(precise.min()), float(precise.max())
    exact = float(values[0])
    assert len(torch.unique(precise)) <= 2
    assert below <= exact <= above or below == above == float(values[0].bfloat16())
    step = 2.0 ** (math.frexp(exact)[1] - 8)  # between two numbers of bfloat16 with 8 bits of precision
    assert abs(float(precise.mean()) - exact) <= 6 * step / 2 / math.sqrt(count)


def test_numbers_of_bfloat16_and_infinities_stay() -> None:
    """Rounding changes no number that bfloat16 has, and no NaN becomes a number, whatever its bits are."""
    kept = torch.tensor([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, 2.0**-126, -3e38]).bfloat16()
    for seed in range(20):
        rounded = stochastically_rounded(kept.float(), torch.Generator().manual_seed(seed))
        assert torch.equal(rounded.view(torch.int16), kept.view(torch.int16))
        nans = torch.tensor([0x7FFFFFFF, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
        assert bool(stochastically_rounded(nans, torch.Generator().manual_seed(seed)).isnan().all())


def test_the_bits_follow_from_seed_step_and_parameter() -> None:
    """Two replicas round in the same way, in whatever state the random generators are; another seed rounds otherwise.

    Equal parameters with equal gradients do not stay equal, nor does the same update in another step.
    """

    def rounded(seed: int, noise: int) -> list[Tensor]:
        torch.manual_seed(noise)
        weights = [nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(2)]
        optimizer = AnyPrecisionAdamW(weights, lr=1e-3, rounding="stochastic", seed=seed)
        seen = []
        for _ in range(2):
            before = [weight.detach().clone() for weight in weights]
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            seen += [weight.detach() - old for weight, old in zip(weights, before, strict=True)]
        return seen

    ours, replica, other = rounded(0, 1), rounded(0, 2), rounded(1, 1)
    assert all(map(torch.equal, ours, replica))
    assert not torch.equal(ours[0], other[0])
    assert not torch.equal(ours[0], ours[1])
    assert not torch.equal(ours[0], ours[2])


# What does not fit


@pytest.mark.parametrize(
    ("options", "dtype", "wanted"),
    [
        ("rounding=stochastik", torch.bfloat16, "rounding=stochastik of adamw_anyprecision, but there is no such"),
        (
            "momentum_dtype=int8",
            torch.bfloat16,
            "momentum_dtype=torch.int8 of adamw_anyprecision, but it takes float32",
        ),
        ("rounding=stochastic,use_kahan_summation=true", torch.bfloat16, "leave one of them out"),
        ("rounding=stochastic", torch.float16, "the model has weights in float16, and it rounds to bfloat16"),
    ],
)
def test_options_that_do_not_fit(options: str, dtype: torch.dtype, wanted: str) -> None:
    """Each is refused when the optimizer is made, with what to choose."""
    kind, given = choose_optimizer("adamw_anyprecision", 0.1, (0.9, 0.99), 1e-8, options, "cpu")
    with pytest.raises(ConfigurationError, match=wanted):
        kind([nn.Parameter(torch.ones(2, dtype=dtype))], **given)


def test_options_are_those_that_transformers_passes() -> None:
    """By default, moments are in float32 and nothing is compensated."""
    kind, given = choose_optimizer("adamw_anyprecision", 0.1, (0.9, 0.99), 1e-8, "use_kahan_summation=True", "cpu")
    optimizer = kind([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], **given)
    expected = {"use_kahan_summation": True, "momentum_dtype": torch.float32, "variance_dtype": torch.float32}
    assert {name: optimizer.defaults[name] for name in expected} == expected
    assert optimizer.defaults["compensation_buffer_dtype"] == torch.bfloat16
    assert [optimizer.defaults[name] for name in ("lr", "betas", "eps")] == [0.1, (0.9, 0.99), 1e-8]


@pytest.mark.parametrize(
    ("dtype", "options", "wanted"),
    [
        (torch.float32, KAHAN, "updates weights of 32 bits as adamw_torch does"),
        (torch.bfloat16, {}, "which loses small updates"),
        (torch.bfloat16, KAHAN, ""),
        (torch.bfloat16, STOCHASTIC, ""),
    ],
)
def test_a_message_says_what_the_weights_mean(
    dtype: torch.dtype, options: dict[str, Any], wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights in float32 are trained by plain AdamW, and plain bfloat16 stalls."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        AnyPrecisionAdamW([nn.Parameter(torch.ones(2, dtype=dtype))], **options)
    assert wanted in caplog.text
    assert bool(caplog.text) == bool(wanted)
