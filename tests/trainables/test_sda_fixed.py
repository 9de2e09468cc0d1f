"""SDA's corrected rules: each repair of methods 4.3 on sentences annotated by hand."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
from annotated import annotated
from outcomes import outcomes

from trainables import sda_fixed
from trainables.sda_words import NEGATING_OPENERS_ZH, NEGATION_OPENERS_EN

# A long subject whose words come again, a relative clause after its comma, a negated auxiliary.
MAN = annotated(
    "The|DET|DT|det|1|the man|NOUN|NN|nsubj|7 who|PRON|WP|nsubj|3 saw|VERB|VBD|relcl|1|see the|DET|DT|det|5 "
    "man|NOUN|NN|dobj|3 ca|AUX|MD|aux|7|can run|VERB|VB|ROOT|7 .|PUNCT|.|punct|7"
)
CANNOT = annotated("We|PRON|PRP|nsubj|3 ca|AUX|MD|aux|3|can n't|PART|RB|neg|3|not go|VERB|VB|ROOT|3")
WONT = annotated("Wo|AUX|MD|aux|3|will n't|PART|RB|neg|3|not you|PRON|PRP|nsubj|3 go|VERB|VB|ROOT|3")
BELOW = annotated(
    "I|PRON|PRP|nsubj|1 think|VERB|VBP|ROOT|1 she|PRON|PRP|nsubj|5 did|AUX|VBD|aux|5|do not|PART|RB|neg|5 "
    "win|VERB|VB|ccomp|1"
)
NOBODY = annotated("No|DET|DT|det|1|no man|NOUN|NN|nsubj|2 came|VERB|VBD|ROOT|2|come")
TO_WIN = annotated("To|PART|TO|aux|1 win|VERB|VB|ROOT|1 .|PUNCT|.|punct|1")
PARIS = annotated("Paris|PROPN|NNP|nsubj|1 sleeps|VERB|VBZ|ROOT|1|sleep")
COMMA = annotated(
    "Go|VERB|VB|ROOT|0|go ,|PUNCT|,|punct|0 if|SCONJ|IN|mark|4 you|PRON|PRP|nsubj|4 want|VERB|VBP|advcl|0 "
    "!|PUNCT|.|punct|0"
)


def texts(rule: Callable[..., str], tokens: object, **options: str) -> dict[str, Fraction]:
    return outcomes(partial(rule, tokens, **options))


def test_the_subject_is_its_subtree_by_number() -> None:
    assert texts(sda_fixed.insert_punctuation, MAN, language="en") == {
        '" The man who saw the man " ca run .': Fraction(1, 4),
        "The man who saw the man , ca run .": Fraction(1, 4),
        "The man , who saw the man ca run .": Fraction(1, 2),
    }


def test_no_comma_beside_a_mark_and_the_tail_exclaims() -> None:
    assert texts(sda_fixed.insert_punctuation, COMMA, language="en") == {"Go , if you want !": Fraction(1)}
    plain = annotated("Red|ADJ|JJ|amod|1 roses|NOUN|NNS|ROOT|1")
    assert texts(sda_fixed.insert_punctuation, plain, language="en") == {"Red roses !": Fraction(1)}
    stop = annotated("Roses|NOUN|NNS|ROOT|0 .|PUNCT|.|punct|0")
    assert texts(sda_fixed.insert_punctuation, stop, language="en") == {"Roses !": Fraction(1)}


@pytest.mark.parametrize(
    ("tokens", "negated"),
    [
        (CANNOT, "We can go"),
        (WONT, "Will you go"),
        (BELOW, "I do not think she did not win"),  # the negation of a subordinate clause stays
        (NOBODY, "man came"),
        (TO_WIN, "no To win ."),  # no "To not win"
        (PARIS, "Paris does not sleep"),
        (MAN, "The man who saw the man ca not run ."),
    ],
)
def test_english_negation(tokens: object, negated: str) -> None:
    assert texts(sda_fixed.negate_english, tokens) == {negated: Fraction(1)}


def test_english_negation_without_a_root_takes_an_opener() -> None:
    loose = annotated("Roses|NOUN|NNS|dep|0")
    assert set(texts(sda_fixed.negate_english, loose)) == {f"{o} Roses" for o in NEGATION_OPENERS_EN}


def test_a_lone_no_is_not_emptied() -> None:
    assert texts(sda_fixed.negate_english, annotated("No|INTJ|UH|ROOT|0|no")) == {"no No": Fraction(1)}


@pytest.mark.parametrize(
    ("tokens", "rest"),
    [
        (CANNOT, "we can go"),
        (BELOW, "I do not think she did not win"),
        (NOBODY, "man came"),
        (PARIS, "Paris does not sleep"),
    ],
)
def test_english_double_negation_is_opener_and_negation(tokens: object, rest: str) -> None:
    found = texts(sda_fixed.double_negation_english, tokens)
    assert found == {f"{opener} {rest}": Fraction(1, 9) for opener in NEGATION_OPENERS_EN}


@pytest.mark.parametrize(
    ("sentence", "negated"),
    [
        ("他|PRON|PN|nsubj|2 可以|VERB|VV|aux:modal|2 来|VERB|VV|ROOT|2", "他不可以来"),
        ("苹果|NOUN|NN|nsubj|2 被|ADP|SB|auxpass|2 吃|VERB|VV|ROOT|2 了|PART|AS|aux:asp|2", "苹果不被吃了"),
        ("北京|PROPN|NR|nsubj|2 是|VERB|VC|cop|2 城市|NOUN|NN|ROOT|2", "北京不是城市"),
        ("他|PRON|PN|nsubj|2 不是|VERB|VC|cop|2 学生|NOUN|NN|ROOT|2", "他是学生"),
        ("我|PRON|PN|nsubj|1 没有|VERB|VE|ROOT|1 钱|NOUN|NN|dobj|1", "我有钱"),
        ("我|PRON|PN|nsubj|2 没有|ADV|AD|neg|2 去|VERB|VV|ROOT|2", "我去"),
        (
            "他|PRON|PN|nsubj|1 说|VERB|VV|ROOT|1 你|PRON|PN|nsubj|4 不|ADV|AD|neg|4 来|VERB|VV|ccomp|1",
            "他不说你不来",
        ),
    ],
)
def test_chinese_negation(sentence: str, negated: str) -> None:
    tokens = annotated(sentence)
    assert texts(sda_fixed.negate_chinese, tokens) == {negated: Fraction(1)}
    assert texts(sda_fixed.double_negation_chinese, tokens) == {
        o + negated: Fraction(1, 4) for o in NEGATING_OPENERS_ZH
    }


def test_chinese_without_a_verb_takes_an_opener_that_negates() -> None:
    big = annotated("房子|NOUN|NN|nsubj|1 大|ADJ|VA|ROOT|1")
    assert texts(sda_fixed.negate_chinese, big) == {o + "房子大": Fraction(1, 4) for o in NEGATING_OPENERS_ZH}


def test_chinese_punctuation_has_its_fallbacks_and_subtypes() -> None:
    car = annotated("红色|NOUN|NN|compound:nn|1 汽车|NOUN|NN|ROOT|1")
    assert texts(sda_fixed.insert_punctuation, car, language="zh") == {"红色汽车！": Fraction(1)}
    after = annotated("走|VERB|VV|ROOT|0 下雨|VERB|VV|advcl:loc|0 后|ADP|LC|case|1")
    assert texts(sda_fixed.insert_punctuation, after, language="zh") == {"走，下雨后": Fraction(1)}
