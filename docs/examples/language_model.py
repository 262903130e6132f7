"""A small byte-level transformer, compared with an n-gram model in bits per byte, with a sample of its text."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hexloop import TrainerCallback, TrainerControl, TrainerState

SYMBOLS = 256


class Windows:
    """A map-style data set of windows of a text: `input_ids` (length,), and as `labels` (length,) the byte after each.

    A window starts every `stride` bytes, as long as a whole one follows.
    """

    def __init__(self, text: str, length: int, stride: int) -> None:
        self.text = torch.tensor(list(text.encode()))
        self.length, self.stride = length, stride

    def __len__(self) -> int:
        return max(0, (len(self.text) - 1 - self.length) // self.stride + 1)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self.stride
        window = self.text[start : start + self.length + 1]
        return {"input_ids": window[:-1], "labels": window[1:]}


class Transformer(nn.Module):
    """A causal transformer over bytes, preceded by a short causal convolution.

    The convolution reads short contexts from the first step on, which attention takes thousands of steps to learn.
    """

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4, reach: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.recent = nn.Conv1d(width, width, kernel_size=reach)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.zeros_(self.head.weight)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits (rows, length, 256) of the byte after each of `input_ids` (rows, length); with labels of this
        shape, also their mean cross entropy in nats."""
        embedded: Tensor = self.embedding(input_ids)
        past = functional.pad(embedded.transpose(1, 2), (self.recent.kernel_size[0] - 1, 0))
        hidden = embedded + self.recent(past).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Block(nn.Module):
    """Pre-norm attention and a two-layer perceptron with residual connections; both start at zero."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.contract.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (rows, length, width) to the same shape."""
        projected: Tensor = self.queries_keys_values(self.attention_norm(hidden))
        queries, keys, values = projected.view(*hidden.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(rotated(queries), rotated(keys), values, is_causal=True)
        hidden = hidden + self.mix(seen.transpose(1, 2).flatten(2))
        expanded: Tensor = self.expand(self.perceptron_norm(hidden))
        contracted: Tensor = self.contract(functional.gelu(expanded))
        return hidden + contracted


def rotated(vectors: Tensor) -> Tensor:
    """Rotate vectors (..., length, size) by angles that grow with their position (rotary embeddings).

    Source: Su et al. 2021, "RoFormer" (arXiv:2104.09864), equation 34.
    """
    length, half = vectors.shape[-2], vectors.shape[-1] // 2
    positions = torch.arange(length, device=vectors.device, dtype=vectors.dtype)
    frequencies = 10_000 ** (-torch.arange(half, device=vectors.device, dtype=vectors.dtype) / half)
    angles = torch.outer(positions, frequencies)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()), dim=-1
    )


@torch.no_grad()
def bits_per_byte(model: nn.Module, windows: Windows, rows: int = 64) -> float:
    """Return the mean of -log2(probability) over all bytes of the windows except the first of each."""
    device = next(model.parameters()).device
    nats = 0.0
    for start in range(0, len(windows), rows):
        batch = [windows[index] for index in range(start, min(start + rows, len(windows)))]
        stacked = {key: torch.stack([row[key] for row in batch]).to(device) for key in batch[0]}
        nats += model(**stacked)["loss"].item() * len(batch)
    return nats / len(windows) / math.log(2)


@torch.no_grad()
def write(model: nn.Module, prompt: str, length: int, context: int, temperature: float, top_k: int, seed: int) -> str:
    """Generate `length` bytes after `prompt`, each sampled from the `top_k` most likely ones.

    context: how many bytes the model sees. temperature: what logits are divided by; below 1 the likely gets likelier.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt.encode())
    for _ in range(length):
        logits = model(torch.tensor([text[-context:]], device=device))["logits"][0, -1].float().cpu()
        likeliest = logits.topk(top_k)
        drawn = torch.multinomial((likeliest.values / temperature).softmax(dim=-1), 1, generator=generator)
        text.append(int(likeliest.indices[drawn]))
    return bytes(text[len(prompt.encode()) :]).decode(errors="replace")


def known_share(sample: str, corpus: str) -> float:
    """Return the share of the sample's words (runs of letters) that occur in the corpus, case-sensitively."""
    words = re.findall(r"[^\W\d_]+", sample)
    known = set(re.findall(r"[^\W\d_]+", corpus))
    return sum(word in known for word in words) / len(words) if words else 0.0


def longest_copy(sample: str, corpus: str) -> int:
    """Return the length in characters of the longest passage of the sample that is copied from the corpus."""
    longest = 0
    for start in range(len(sample)):
        while start + longest < len(sample) and sample[start : start + longest + 1] in corpus:
            longest += 1
    return longest


class Baseline(Protocol):
    """Return the n-gram model to compare with."""

    def bits_per_byte(self, text: bytes) -> float: ...


class Report(TrainerCallback):
    """Prints a comparison with the baseline and a sample, and writes report.json and sample.txt.

    Both models predict the same bytes of `held_out`; this one sees it in windows of `context` bytes. The sample has
    `length` bytes, drawn as `write` says.
    """

    def __init__(
        self,
        corpus: str,
        held_out: str,
        baseline: Baseline,
        context: int = 128,
        prompt: str = "\n\n",
        length: int = 800,
        temperature: float = 0.7,
        top_k: int = 40,
        seed: int = 0,
    ) -> None:
        self.corpus, self.baseline = corpus, baseline
        self.windows = Windows(held_out, context, context)
        self.write = partial(
            write, prompt=prompt, length=length, context=context, temperature=temperature, top_k=top_k, seed=seed
        )

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        model: nn.Module = kwargs["model"]
        was_training = model.training
        model.eval()
        sample = self.write(model)
        judged = self.windows.text[: len(self.windows) * self.windows.length + 1]
        report = {
            "held_out_bytes": len(judged) - 1,
            "bits_per_byte": bits_per_byte(model, self.windows),
            "baseline_bits_per_byte": self.baseline.bits_per_byte(bytes(judged.tolist())),
            "known_share": known_share(sample, self.corpus),
            "longest_copy": longest_copy(sample, self.corpus),
        }
        model.train(was_training)
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sample.txt").write_text(sample, encoding="utf-8")
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(sample)
        print("\n".join(f"{name}: {value:.4g}" for name, value in report.items()))
