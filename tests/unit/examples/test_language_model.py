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
    """A model with random weights throughout, those included that begin at zero."""
    torch.manual_seed(0)
    model = Transformer(width=16, layers=2, heads=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_windows_hold_each_byte_and_the_one_after_it() -> None:
    """Windows of four every three bytes, as long as whole ones follow."""
    windows = Windows("abcdefghij", length=4, stride=3)
    held = [[bytes(row[key].tolist()) for key in ("input_ids", "labels")] for row in map(windows.__getitem__, range(2))]
    assert held == [[b"abcd", b"bcde"], [b"defg", b"efgh"]]
    assert len(windows) == 2
    assert len(Windows("abcdefghijk", length=4, stride=3)) == 3


@pytest.mark.parametrize(("text", "count"), [("", 0), ("abcd", 0), ("abcde", 1)])
def test_a_text_too_short_for_a_window_has_none(text: str, count: int) -> None:
    """A window of four needs a fifth byte to foretell."""
    assert len(Windows(text, length=4, stride=1)) == count


def test_no_byte_is_foretold_from_later_ones() -> None:
    """A change of the sixth byte changes no logits before the sixth."""
    model = small_transformer()
    before = torch.randint(256, (1, 12))
    after = before.clone()
    after[0, 5] = (after[0, 5] + 1) % 256
    unlike = (model(before)["logits"] - model(after)["logits"]).abs().amax(dim=-1)[0]
    assert unlike[:5].max() == 0
    assert unlike[5:].min() > 0


def test_the_first_byte_still_tells_in_the_last_logits() -> None:
    """Attention reaches beyond the four bytes that the convolution reads."""
    model = small_transformer()
    before = torch.randint(256, (1, 12))
    after = before.clone()
    after[0, 0] = (after[0, 0] + 1) % 256
    assert not torch.equal(model(before)["logits"][0, -1], model(after)["logits"][0, -1])


def test_rotation_keeps_lengths_and_tells_distances() -> None:
    """Products of rotated vectors depend on how far apart they stand, not on where."""
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).unbind()
    queries, keys = rotated(query.expand(6, 8)), rotated(key.expand(6, 8))
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(6))
    products = queries @ keys.T
    for distance in range(6):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    assert not torch.allclose(products[0], products[0, :1].expand(6))


def test_a_fresh_model_takes_eight_bits_a_byte() -> None:
    """Logits that are all alike make every byte one of 256."""
    assert bits_per_byte(Transformer(width=8, layers=1, heads=2), Windows("some text", 4, 4)) == pytest.approx(8)


def test_bits_per_byte_is_the_mean_over_all_windows() -> None:
    """However the windows are batched, the mean over all their bytes."""
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
    """Foretells the next byte of the alphabet with certainty, `choices` of them with falling logits."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self.falling = torch.nn.Parameter(-torch.arange(choices, dtype=torch.float32))

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = torch.full((*input_ids.shape, 256), -1e9)
        for ahead, logit in enumerate(self.falling, 1):
            logits.scatter_(-1, ((input_ids + ahead) % 256)[..., None], float(logit))
        return {"logits": logits}


def test_writing_goes_on_from_the_prompt() -> None:
    """A model that is certain writes the one text it knows, without the prompt."""
    assert write(Successor(1), "abc", length=4, context=2, temperature=1, top_k=5, seed=0) == "defg"


def test_only_the_likeliest_bytes_are_drawn() -> None:
    """With the two likeliest of many, each byte is one or two letters on; which ones is told by the seed."""
    drawn = [write(Successor(20), "A", length=10, context=4, temperature=9, top_k=2, seed=seed) for seed in (0, 0, 1)]
    letters = [("A" + text).encode() for text in drawn]
    assert {after - before for text in letters for before, after in pairwise(text)} == {1, 2}
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_low_temperature_makes_the_likely_likelier() -> None:
    """Near zero the likeliest byte is always drawn."""
    assert write(Successor(20), "a", length=6, context=4, temperature=0.01, top_k=20, seed=0) == "bcdefg"


def test_words_are_known_as_they_are_written() -> None:
    """Words are runs of letters; another capital, or half a word, is another word."""
    assert known_share("the cat sat", "The cat sat on the mat") == 1
    assert known_share("Cat, mats; sat_on(mat)", "The cat sat on the mat") == pytest.approx(3 / 5)
    assert known_share("1 + 1", "anything") == 0


def test_copies_are_measured_in_characters() -> None:
    """The longest passage of both counts, line breaks and all, wherever it stands."""
    assert longest_copy("a brown fox!", "the quick brown fox jumps") == len(" brown fox")
    assert longest_copy("brown\nfox", "brown fox") == len("brown")
    assert longest_copy("xyz", "abc") == 0
    assert longest_copy("", "abc") == 0


@pytest.mark.parametrize("first", [False, True])
def test_the_report_is_written_by_the_first_process_alone(first: bool, tmp_path: Path) -> None:
    """It judges both models by the bytes of whole windows, and its sample by the corpus."""
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
