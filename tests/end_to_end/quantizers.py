"""The table of quantization methods in docs/quantized.md: `python -m tests.end_to_end.quantizers` writes it again.

Each row is checked against transformers' own rules.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

PAGE = Path(__file__).parents[2] / "docs" / "quantized.md"

BEGIN, END = "<!-- methods -->\n\n", "\n<!-- end of methods -->"


@frozen
class Method:
    """How a method of quantization is trained.

    trains: whether it can be; None if that depends on what `condition` says. aware: whether quantization-aware
    training, without adapters, is possible, under the same condition. tested: whether the tests of hexloop train it.
    trained_with, refused_with: options of the method's configuration with which it is trained, and is not.
    """

    trains: bool | None
    condition: str = ""
    aware: bool = False
    tested: bool = False
    trained_with: tuple[tuple[str, object], ...] = ()
    refused_with: tuple[tuple[str, object], ...] = ()


METHODS: dict[str, Method] = {
    "aqlm": Method(None, "from aqlm 1.0.2 on"),
    "auto-round": Method(False),
    "awq": Method(None, "from gptqmodel 5.0 on"),
    "bitnet": Method(
        None,
        "with `linear_class='autobitlinear'` and `quantization_mode='online'`",
        aware=True,
        trained_with=(("linear_class", "autobitlinear"), ("quantization_mode", "online")),
        refused_with=(("linear_class", "bitlinear"), ("quantization_mode", "offline")),
    ),
    "bitsandbytes_4bit": Method(True, tested=True),
    "bitsandbytes_8bit": Method(True, tested=True),
    "compressed-tensors": Method(
        None,
        "unless it computes by its fp8 kernels; aware of quantization if the weights are not compressed",
        aware=True,
        trained_with=(("use_fp8_kernel", False), ("dequantize", True), ("is_quantization_compressed", False)),
        refused_with=(("use_fp8_kernel", True),),
    ),
    "eetq": Method(True),
    "fbgemm_fp8": Method(False),
    "fouroversix": Method(
        None,
        "with `keep_master_weights=True`",
        trained_with=(("keep_master_weights", True),),
        refused_with=(("keep_master_weights", False),),
    ),
    "fp8": Method(True),
    "fp_quant": Method(
        None,
        "with `store_master_weights=True`",
        aware=True,
        trained_with=(("store_master_weights", True),),
        refused_with=(("store_master_weights", False),),
    ),
    "gemma": Method(False),
    "gguf": Method(False),
    "gptq": Method(True),
    "higgs": Method(False),
    "hqq": Method(True),
    "metal": Method(False),
    "mxfp4": Method(False),
    "mxfp8": Method(True),
    "nvfp4": Method(False),
    "quanto": Method(True),
    "quark": Method(False),
    "sinq": Method(True),
    "spqr": Method(False),
    "torchao": Method(None, "of 8 bits", tested=True),
    "vptq": Method(False),
}
"""Every method that transformers knows, by its name there."""

REFUSED = "refused: transformers' quantizer says that it does not support training"


def table() -> str:
    """Return the table as the page has it."""
    lines = ["| method | trained |", "|---|---|"]
    for name, method in METHODS.items():
        if method.trains is False:
            said = REFUSED
        else:
            said = "with adapters" + (", or aware of quantization" if method.aware else "")
            said += f", {method.condition}" if method.condition else ""
            said += "; tested" if method.tested else ""
        lines.append(f"| `{name}` | {said} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + table() + END + after)
