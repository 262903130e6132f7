from __future__ import annotations

from docs.examples.topics import corpus, held_out_text, split, training_text, unique_paragraphs


def test_paragraphs_are_kept_where_they_come_first() -> None:
    """A paragraph that comes again, its lines broken elsewhere, is left out."""
    text = "One\ntwo.\n\nThree.\n  \nOne two.\n\n\nFour."
    assert unique_paragraphs(text) == ["One\ntwo.", "Three.", "Four."]


def test_tables_and_grammars_are_left_out() -> None:
    """What is drawn with rules, and what defines a symbol, is no English; an operator in a sentence is."""
    table = "+-----+-----+\n| a   | b   |\n|     | c   |\n+=====+=====+"
    grammar = '   sign ::= "+"\n            | "-"'
    assert unique_paragraphs(f"Text.\n\n{table}\n\n{grammar}\n\nWith | or +.") == ["Text.", "With | or +."]


def test_every_third_block_is_held_out() -> None:
    """Paragraphs of eight bytes in blocks of sixteen: two and two to train on, the next two held out, and so on."""
    text = "\n\n".join(f"{number:06}" for number in range(8))
    training, held_out = split(text, block=16, held_out_every=3)
    assert training.split() == ["000000", "000001", "000002", "000003", "000006", "000007"]
    assert held_out.split() == ["000004", "000005"]


def test_no_held_out_paragraph_is_trained_on() -> None:
    """The parts of the real text share no paragraph, and all of them stand in the corpus."""
    training, held_out = (set(unique_paragraphs(part)) for part in (training_text(), held_out_text()))
    assert training.isdisjoint(held_out)
    whole = corpus()
    assert all(paragraph in whole for paragraph in held_out | training)


def test_about_a_tenth_is_held_out() -> None:
    """Whole blocks of the real text: between 8 and 12 % of its bytes, the same whenever it is split."""
    training, held_out = training_text(), held_out_text()
    assert 0.08 < len(held_out) / (len(training) + len(held_out)) < 0.12
    assert (training, held_out) == split(corpus())
