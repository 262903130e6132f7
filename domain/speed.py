"""How fast a run or an evaluation was, under the reference library's names."""

from __future__ import annotations


def speed_metrics(
    prefix: str, seconds: float, samples: float | None = None, steps: float | None = None, tokens: float | None = None
) -> dict[str, float]:
    """`<prefix>_runtime` in seconds, and samples, steps and tokens a second, where they are known.

    Rounded to 4 decimals (runtime) and 3 (rates), as the reference library rounds; no rates for no time at all.
    """
    figures = {f"{prefix}_runtime": round(seconds, 4)}
    if seconds == 0:
        return figures
    for name, count in (("samples", samples), ("steps", steps), ("tokens", tokens)):
        if count is not None:
            figures[f"{prefix}_{name}_per_second"] = round(count / seconds, 3)
    return figures
