"""Small charts of a run for notebooks, as SVG within the page: no script, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from attrs import define, field, frozen

from hexloop.app.series import Series, reduced
from hexloop.domain.evaluation import CLOCK_READINGS

WIDTH, HEIGHT = 340, 190
LEFT, TOP, RIGHT, BOTTOM = 70, 24, 12, 24
"""Pixels of a chart, and around its plot."""

MOST_POINTS = 200
"""How many points of a curve are drawn."""

MOST_CHARTS = 6

LEFT_OUT = ("epoch", "step", "total_flos")
"""Names of values without a chart: what only grows."""

LARGEST = 1.7e308
"""Beyond it, a number is left out; NaN is kept as a step without a value."""

COLOURS = ("#2386c4", "#d55e00")
"""Blue and vermilion, seen on light and on dark paper and with any kind of colour vision. The second has dashes too."""


@define
class RunCurves:
    """The curves of a run, by the names of its logs. Training loss and validation loss share a chart."""

    series: dict[str, Series] = field(factory=dict)
    _drawn: str | None = field(default=None, init=False)

    def add(self, step: int, values: Mapping[str, object]) -> None:
        """Add what was logged at a step. Steps that a run repeats replace those from before."""
        for name, value in values.items():
            skipped = name in LEFT_OUT or name.startswith("train_") or name.endswith(CLOCK_READINGS)
            if isinstance(value, int | float) and not skipped and not abs(value) > LARGEST:
                self.series.setdefault(name, Series()).add(step, float(value))
                self._drawn = None

    def html(self) -> str:
        """Return the charts of all curves with at least two points; empty if there are none."""
        if self._drawn is None:
            together = {"loss": ["loss", "eval_loss"]}
            together |= {name: [name] for name in sorted(self.series) if name not in ("loss", "eval_loss")}
            charts = [chart(title, {name: self.series[name] for name in names if name in self.series})
                      for title, names in sorted(together.items(), key=_order)]  # fmt: skip
            shown = [each for each in charts if each][:MOST_CHARTS]
            self._drawn = f"<div style='display:flex; flex-wrap:wrap'>{''.join(shown)}</div>" if shown else ""
        return self._drawn


def chart(title: str, curves: Mapping[str, Series]) -> str:
    """Return a chart as SVG; empty if no curve has two points."""
    drawn = {name: reduced(series.steps, series.values, MOST_POINTS) for name, series in curves.items()}
    drawn = {name: points for name, points in drawn.items() if points[0]}
    if not any(len(steps) > 1 for steps, _ in drawn.values()):
        return ""
    steps = [step for points in drawn.values() for step in points[0]]
    values = [value for points in drawn.values() for value in points[1]]
    across = PixelScale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    up = PixelScale(min(values), max(values), HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 14, _legend(title, list(drawn)), "start")]
    for value in (min(values), max(values)):
        parts += [_text(LEFT - 6, up(value) + 4, f"{value:.4g}", "end"), _rule(up(value))]
    parts += [_text(across(min(steps)), HEIGHT - 6, f"{min(steps):,}", "start")]
    parts += [_text(across(max(steps)), HEIGHT - 6, f"step {max(steps):,}", "end")]
    for number, (each_steps, each_values) in enumerate(drawn.values()):
        pairs = zip(each_steps, each_values, strict=True)
        line = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in pairs)
        dashes = " stroke-dasharray='6 4'" if number else ""
        parts.append(f"<polyline points='{line}' fill='none' stroke='{COLOURS[number]}' stroke-width='2'{dashes}/>")
    label = escape(f"{title} from step {min(steps):,} to {max(steps):,}, last {values[-1]:.4g}", quote=True)
    return (
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{label}' "
        f"style='font: 12px sans-serif; color: inherit'>{''.join(parts)}</svg>"
    )


def _legend(title: str, names: list[str]) -> str:
    if len(names) == 1:
        return escape(title)
    spans = (
        f"<tspan fill='{COLOURS[number]}' font-weight='bold'>{escape(name)}</tspan>"
        for number, name in enumerate(names)
    )
    return "  ".join(spans)


def _order(item: tuple[str, list[str]]) -> tuple[int, str]:
    title = item[0]
    return (0 if title == "loss" else 1 if title.startswith("eval_") else 2), title


@frozen
class PixelScale:
    """Maps values between `low` and `high` to pixels between `start` and `end`; equal ones to the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        span = self.high / 2 - self.low / 2  # a difference may be too large for a float
        share = (value / 2 - self.low / 2) / span if span > 0 else 0.5
        return self.start + (self.end - self.start) * (share if math.isfinite(share) else 0.5)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='currentColor'>{text}</text>"


def _rule(y: float) -> str:
    return f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='currentColor' opacity='0.25'/>"
