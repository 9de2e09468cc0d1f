"""SDA's rules as printed: order and place of each step, against the public code's where the two part."""

from __future__ import annotations

from fractions import Fraction

import pytest
from annotated import annotated
from outcomes import outcomes

from trainables.contract.errors import DataError
from trainables.data.parses import Token
from trainables.methods.sda import english, paper
from trainables.methods.sda.config import check_parser
from trainables.methods.sda.corpus import rule_for
from trainables.methods.sda.method import mean_jaccard

# The paper's verb: "travelled" becomes "must have travelled", in the public code "must travel" (D22).
TRAVELLED = annotated("The|DET|DT|det|1|the man|NOUN|NN|nsubj|2 travelled|VERB|VBD|ROOT|2|travel .|PUNCT|.|punct|2")
WENT = annotated("He|PRON|PRP|nsubj|1 went|VERB|VBD|ROOT|1|go")
BIG = annotated("A|DET|DT|det|2 big|ADJ|JJ|amod|2 dog|NOUN|NN|nsubj|3 will|AUX|MD|aux|4 run|VERB|VB|ROOT|4")
CLAUSE = annotated(
    "He|PRON|PRP|nsubj|1 slept|VERB|VBD|ROOT|1|sleep as|SCONJ|IN|mark|4 it|PRON|PRP|nsubj|4 "
    "rained|VERB|VBD|advcl|1|rain .|PUNCT|.|punct|1"
)
NO_SUBJECT = annotated("Why|ADV|WRB|ROOT|0 ?|PUNCT|.|punct|0")
SAID = annotated(
    "He|PRON|PRP|nsubj|1 said|VERB|VBD|ROOT|1|say she|PRON|PRP|nsubj|4 was|AUX|VBD|aux|4 sleeping|VERB|VBG|ccomp|1"
)
NEVER = annotated("He|PRON|PRP|nsubj|3 did|AUX|VBD|aux|3 not|PART|RB|neg|3 sleep|VERB|VB|ROOT|3")
TWICE = annotated("No|DET|DT|det|1 no|DET|DT|det|1 no|DET|DT|det|1 man|NOUN|NN|ROOT|3")


def texts(rule: object, tokens: list[Token]) -> dict[str, Fraction]:
    return outcomes(lambda rng: rule(tokens, rng))  # type: ignore[operator]


def test_a_past_verb_keeps_its_tense() -> None:
    found = texts(paper.add_modal, TRAVELLED)
    assert len(found) == 9
    assert {
        "The man must have travelled .",
        "The man should have travelled .",
        "The man needed to have travelled .",
    } < (set(found))
    assert "The man must travel ." in texts(english.add_modal, TRAVELLED)
    assert "He must have gone" in texts(paper.add_modal, WENT)


def test_modal_verbs_alone() -> None:
    """No adverb before the adjective, which the public code puts there where no modal fits."""
    assert texts(paper.add_modal, BIG) == {"A big dog will run": Fraction(1)}
    assert len(texts(english.add_modal, BIG)) == 9


def test_punctuation_tries_clause_subject_and_mark_in_this_order() -> None:
    assert texts(paper.insert_punctuation, CLAUSE) == {"He slept , as it rained .": Fraction(1)}
    assert texts(paper.insert_punctuation, TRAVELLED) == {
        '" The man " travelled .': Fraction(1, 2),
        "The man , travelled .": Fraction(1, 2),
    }
    assert texts(paper.insert_punctuation, NO_SUBJECT) == {"Why !": Fraction(1)}


@pytest.mark.parametrize(
    ("tokens", "negated"),
    [
        (SAID, "He do not say she was not sleeping"),  # twice inside the sentence
        (TRAVELLED, "Not that The man do not travel ."),  # once, and the prefix
        (NEVER, "He did not sleep"),  # one deleted, one added
        (TWICE, "No man"),  # two deleted; the public code skips the second and goes on
        (NO_SUBJECT, "Why ?"),
    ],
)
def test_double_negation(tokens: list[Token], negated: str) -> None:
    assert texts(paper.double_negation, tokens) == {negated: Fraction(1)}


def test_chinese_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^rule_set paper: its rules are English, got language 'zh'"):
        rule_for("pi", "paper", "zh")
    with pytest.raises(DataError, match=r"^params.rule_set: paper has English rules only, data.language is zh"):
        check_parser({"data": {"language": "zh"}, "params": {"rule_set": "paper"}})


def test_jaccard() -> None:
    assert mean_jaccard(["a b c", "x y"], ["a b d", "x y"], "en") == pytest.approx((2 / 4 + 1) / 2)
    assert mean_jaccard(["我去"], ["我 不去"], "zh") == pytest.approx(2 / 3)
    assert mean_jaccard([""], [""], "en") == 1.0
