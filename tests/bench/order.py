"""Cost of the sample order. Run as `OMP_NUM_THREADS=1 python tests/bench/order.py`; prints a table."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from statistics import median

SAMPLES = 10**8
BATCH = 64


def seconds(call: Callable[[], object], repeats: int = 11) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


def peak_megabytes() -> float:
    """Return the peak of this process's resident memory, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def first_batch() -> tuple[float, float]:
    """Return the seconds to the first batch of 10**8 samples, and the additional megabytes; numpy is already loaded."""
    from hexloop.adapters.batches.torch.order import VectorisedPermutation

    held, begin = peak_megabytes(), time.perf_counter()
    VectorisedPermutation(0, 0, SAMPLES).indices(0, BATCH)
    return time.perf_counter() - begin, peak_megabytes() - held


def main() -> None:
    first_seconds, first_megabytes = first_batch()
    print(f"first batch of {SAMPLES:,} samples: {1000 * first_seconds:.2f} ms, {first_megabytes:.1f} MB more")

    from hexloop.adapters.batches.torch.order import VectorisedPermutation
    from hexloop.domain.order import GroupedByLength, KeyedPermutation

    print(f"\n{'order':<44}{'microseconds a sample':>22}")
    # 1025 and 2**40 + 1 leave the smallest and the largest part of the grid unused; 1000 uses a table.
    for length in (1000, 1025, SAMPLES, 2**40 + 1, 2**62):
        for block in (64, 4096, 65_536, 1_048_576):
            if block <= length:
                start = (length - block) // 2
                cost = seconds(lambda: VectorisedPermutation(0, 0, length).indices(start, start + block)) / block  # noqa: B023
                print(f"{f'adapter, {length:,} by {block:,}':<44}{1e6 * cost:>22.3f}")

    plain, fast = KeyedPermutation(0, 0, SAMPLES), VectorisedPermutation(0, 0, SAMPLES)
    print(f"{'domain, one by one':<44}{1e6 * seconds(lambda: plain.block(0, 4096)) / 4096:>22.3f}")
    window = 50 * BATCH
    for name, order in (("domain", plain), ("adapter", fast)):
        cost = seconds(lambda: GroupedByLength(order, BATCH, lambda index: index % 512).block(0, window)) / window  # noqa: B023
        print(f"{f'grouped by length over the {name}':<44}{1e6 * cost:>22.3f}")


if __name__ == "__main__":
    main()
