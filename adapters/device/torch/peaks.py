"""What accelerators compute at most: floating-point operations per second, by their name and the format of products.

Figures are those of dense products, from the vendors' data sheets, of which several give twice as much for sparse ones.
Sources, by vendor:

- NVIDIA: data sheets "V100", "T4", "A10", "A100", "L4", "L40S", "H100", "H200" and "HGX B200"; AWS and NVIDIA, "A10G";
  white paper "NVIDIA Ada GPU architecture", appendix A, for the RTX 4090, with sums in fp32.
- AMD: data sheets "Instinct MI250X", of which torch sees each half as a device, "MI300X" and "MI325X"; products in fp32
  are those of its matrix cores.
- Google: "TPU v4", "v5e", "v5p" and "v6e" in the documentation of Cloud TPU.

Of a device whose name is not in the table, nothing is known. A part of a GPU (MIG) has a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TERA = 1e12

FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""The formats of the figures in each row."""

Row = tuple[float | None, float | None, float | None, float | None, float | None]

PEAKS: Mapping[str, Row] = {
    r"(NVIDIA |Tesla )*V100-SXM2-\d+GB": (15.7, None, None, 125, None),
    r"(NVIDIA |Tesla )*V100-PCIE-\d+GB": (14, None, None, 112, None),
    r"(NVIDIA |Tesla )*T4": (8.1, None, None, 65, None),
    r"NVIDIA A10": (31.2, 62.5, 125, 125, None),
    r"NVIDIA A10G": (35, 35, 70, 70, None),
    r"(NVIDIA )?A100([- ]\w+)?[- ](40|80)GB( PCIe)?": (19.5, 156, 312, 312, None),
    r"NVIDIA L4": (30.3, 60, 121, 121, 242.5),
    r"NVIDIA L40S": (91.6, 183, 362, 362, 733),
    r"NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2, 330.3),
    r"NVIDIA H100( 80GB HBM3)?": (67, 494.7, 989.4, 989.4, 1978.9),
    r"NVIDIA H100 PCIe": (51, 378, 756, 756, 1513),
    r"NVIDIA H100 NVL": (60, 417.5, 835.5, 835.5, 1670.5),
    r"NVIDIA H200": (67, 494.7, 989.4, 989.4, 1978.9),
    r"NVIDIA H200 NVL": (60, 417.5, 835.5, 835.5, 1670.5),
    r"NVIDIA B200": (75, 1125, 2250, 2250, 4500),
    r"AMD Instinct MI250X.*": (47.9, None, 191.5, 191.5, None),
    r"AMD Instinct MI300X.*": (163.4, 653.7, 1307.4, 1307.4, 2614.9),
    r"AMD Instinct MI325X.*": (163.4, 653.7, 1307.4, 1307.4, 2614.9),
}
"""From the names that torch has for a device, as a regular expression, to 10^12 operations per second by format."""

TPU_PEAKS: Mapping[str, float] = {"v4": 275, "v5litepod": 197, "v5p": 459, "v6e": 918}
"""From the start of an accelerator type, such as that of "v5p-16", to 10^12 operations per second of a chip in bf16."""


def peak_of(name: str, precision: str) -> float | None:
    """Return the operations per second of a device that torch calls `name`; None if that is not known."""
    row = next((row for pattern, row in PEAKS.items() if re.fullmatch(pattern, name)), None)
    figure = dict(zip(FORMATS, row, strict=True)).get(precision) if row is not None else None
    return None if figure is None else figure * TERA


def tpu_peak(accelerator: str, precision: str) -> float | None:
    """Return the operations per second of a chip of an accelerator type of Cloud TPU; None if that is not known."""
    figure = TPU_PEAKS.get(accelerator.partition("-")[0]) if precision == "bf16" else None
    return None if figure is None else figure * TERA
