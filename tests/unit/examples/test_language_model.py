from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from docs.examples.language_model import (
    Report,
    Transformer,
    Windows,
    bits_per_byte,
    known_share,
    longest_copy,
    rotated,
    write,
)
from docs.examples.trigram import NGram
from hexloop import TrainerControl, TrainerState


def small_transformer() -> Transformer:
    """Return a model in which all weights are random, those initialized to zero included."""
    torch.manual_seed(0)
    model = Transformer(width=16, layers=2, heads=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_windows_have_inputs_and_next_bytes() -> None:
    """There is a window of four bytes every three bytes as long as the text has complete ones."""
    windows = Windows("abcdefghij", length=4, stride=3)
    held = [[bytes(row[key].tolist()) for key in ("input_ids", "labels")] for row in map(windows.__getitem__, range(2))]
    assert held == [[b"abcd", b"bcde"], [b"defg", b"efgh"]]
    assert len(windows) == 2
    assert len(Windows("abcdefghijk", length=4, stride=3)) == 3


@pytest.mark.parametrize(("text", "count"), [("", 0), ("abcd", 0), ("abcde", 1)])
def test_short_text_has_no_windows(text: str, count: int) -> None:
    """A window of four bytes needs a fifth byte as the last target."""
    assert len(Windows(text, length=4, stride=1)) == count


def test_model_is_causal() -> None:
    """A change of the sixth byte does not change earlier logits."""
    model = small_transformer()
    before = torch.randint(256, (1, 12))
    after = before.clone()
    after[0, 5] = (after[0, 5] + 1) % 256
    unlike = (model(before)["logits"] - model(after)["logits"]).abs().amax(dim=-1)[0]
    assert unlike[:5].max() == 0
    assert unlike[5:].min() > 0


def test_first_byte_affects_the_last_logits() -> None:
    """Attention reaches beyond the four bytes of the convolution."""
    model = small_transformer()
    before = torch.randint(256, (1, 12))
    after = before.clone()
    after[0, 0] = (after[0, 0] + 1) % 256
    assert not torch.equal(model(before)["logits"][0, -1], model(after)["logits"][0, -1])


def test_rotary_embedding_keeps_norms_and_encodes_distances() -> None:
    """Products of rotated vectors depend on relative positions only."""
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).unbind()
    queries, keys = rotated(query.expand(6, 8)), rotated(key.expand(6, 8))
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(6))
    products = queries @ keys.T
    for distance in range(6):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    assert not torch.allclose(products[0], products[0, :1].expand(6))


def test_initial_model_needs_eight_bits_per_byte() -> None:
    """Equal logits give each of the 256 bytes the same probability."""
    assert bits_per_byte(Transformer(width=8, layers=1, heads=2), Windows("some text", 4, 4)) == pytest.approx(8)


def test_bits_per_byte_is_the_mean_over_all_windows() -> None:
    """The mean over all bytes does not depend on the batch size."""
    model, windows = small_transformer(), Windows("the quick brown fox jumps over the lazy dog", 8, 8)
    rows = [windows[index] for index in range(len(windows))]
    bits = [
        -model(row["input_ids"][None])["logits"][0].detach().log_softmax(dim=-1)[torch.arange(8), row["labels"]]
        / math.log(2)
        for row in rows
    ]
    for batch in (1, 2, 64):
        assert bits_per_byte(model, windows, batch) == pytest.approx(float(torch.cat(bits).mean()), rel=1e-5)


class Successor(torch.nn.Module):
    """Predicts the next byte of the alphabet, or `choices` of them with decreasing logits."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self.falling = torch.nn.Parameter(-torch.arange(choices, dtype=torch.float32))

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = torch.full((*input_ids.shape, 256), -1e9)
        for ahead, logit in enumerate(self.falling, 1):
            logits.scatter_(-1, ((input_ids + ahead) % 256)[..., None], float(logit))
        return {"logits": logits}


def test_sampling_continues_the_prompt() -> None:
    """A deterministic model writes its only continuation, without the prompt."""
    assert write(Successor(1), "abc", length=4, context=2, temperature=1, top_k=5, seed=0) == "defg"


def test_top_k_sampling() -> None:
    """With top-k of two, each byte is one of the two most likely, selected by the seed."""
    drawn = [write(Successor(20), "A", length=10, context=4, temperature=9, top_k=2, seed=seed) for seed in (0, 0, 1)]
    letters = [("A" + text).encode() for text in drawn]
    assert {after - before for text in letters for before, after in pairwise(text)} == {1, 2}
    assert drawn[0] == drawn[1] != drawn[2]


def test_low_temperature_is_greedy() -> None:
    """At a temperature near zero the most likely byte is always drawn."""
    assert write(Successor(20), "a", length=6, context=4, temperature=0.01, top_k=20, seed=0) == "bcdefg"


def test_words_match_exactly() -> None:
    """Words are runs of letters; other capitalization or a part of a word does not match."""
    assert known_share("the cat sat", "The cat sat on the mat") == 1
    assert known_share("Cat, mats; sat_on(mat)", "The cat sat on the mat") == pytest.approx(3 / 5)
    assert known_share("1 + 1", "anything") == 0


def test_longest_copy_is_measured_in_characters() -> None:
    """The longest common passage counts, line breaks included, at any position."""
    assert longest_copy("a brown fox!", "the quick brown fox jumps") == len(" brown fox")
    assert longest_copy("brown\nfox", "brown fox") == len("brown")
    assert longest_copy("xyz", "abc") == 0
    assert longest_copy("", "abc") == 0


@pytest.mark.parametrize("first", [False, True])
def test_report_is_written_by_rank_0_only(first: bool, tmp_path: Path) -> None:
    """It compares both models on complete windows and its sample with the corpus."""
    corpus, held_out = "ab" * 40, "abababababab"
    report = Report(corpus, held_out, NGram(corpus.encode()), context=4, prompt="a", length=9)
    args = SimpleNamespace(output_dir=str(tmp_path / "run"))
    model = Transformer(width=8, layers=1, heads=2).train()
    state = TrainerState(is_world_process_zero=first)
    report.on_train_end(args, state, TrainerControl(), model=model)
    assert model.training
    if not first:
        assert not list(tmp_path.iterdir())
        return
    written = json.loads((tmp_path / "run" / "report.json").read_text())
    sample = (tmp_path / "run" / "sample.txt").read_text(encoding="utf-8")
    assert written == {
        "held_out_bytes": 8,
        "bits_per_byte": pytest.approx(8),
        "baseline_bits_per_byte": NGram(corpus.encode()).bits_per_byte(held_out.encode()[:9]),
        "known_share": known_share(sample, corpus),
        "longest_copy": longest_copy(sample, corpus),
    }
