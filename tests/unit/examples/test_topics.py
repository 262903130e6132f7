from __future__ import annotations

from docs.examples.topics import corpus, held_out_text, split, training_text, unique_paragraphs


def test_repeated_paragraphs_are_removed() -> None:
    """A repeated paragraph is removed even if its lines are wrapped differently."""
    text = "One\ntwo.\n\nThree.\n  \nOne two.\n\n\nFour."
    assert unique_paragraphs(text) == ["One\ntwo.", "Three.", "Four."]


def test_tables_and_grammars_are_removed() -> None:
    """Tables and grammar rules are removed; operators within sentences are kept."""
    table = "+-----+-----+\n| a   | b   |\n|     | c   |\n+=====+=====+"
    grammar = '   sign ::= "+"\n            | "-"'
    assert unique_paragraphs(f"Text.\n\n{table}\n\n{grammar}\n\nWith | or +.") == ["Text.", "With | or +."]


def test_every_third_block_is_held_out() -> None:
    """Paragraphs of eight bytes in blocks of sixteen: the first two train, the next is held out."""
    text = "\n\n".join(f"{number:06}" for number in range(8))
    training, held_out = split(text, block=16, held_out_every=3)
    assert training.split() == ["000000", "000001", "000002", "000003", "000006", "000007"]
    assert held_out.split() == ["000004", "000005"]


def test_no_held_out_paragraph_is_trained_on() -> None:
    """The splits of the real text share no paragraph and are part of the corpus."""
    training, held_out = (set(unique_paragraphs(part)) for part in (training_text(), held_out_text()))
    assert training.isdisjoint(held_out)
    whole = corpus()
    assert all(paragraph in whole for paragraph in held_out | training)


def test_about_a_tenth_is_held_out() -> None:
    """The held-out blocks are 8 to 12 % of the bytes, and the split is deterministic."""
    training, held_out = training_text(), held_out_text()
    assert 0.08 < len(held_out) / (len(training) + len(held_out)) < 0.12
    assert (training, held_out) == split(corpus())
