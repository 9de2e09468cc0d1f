"""The reference cases of SDA's rules: every possible output of the public code with its exact probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from outcomes import outcomes

from trainables.data.parses import Token
from trainables.methods.sda import chinese as sda_chinese
from trainables.methods.sda import english as sda_english
from trainables.methods.sda.dice import Dice
from trainables.methods.sda.punctuation import insert_punctuation, mark_clause, mark_subject, mark_tail
from trainables.methods.sda.words import CHINESE, ENGLISH

TOLERANCE = 1e-8  # the files' own


def check_sda_rules_en(data: Mapping[str, Any]) -> None:
    """PI, MV, DN, NEG and their sub-rules on the English cases."""
    rules = {
        "pi": partial(insert_punctuation, language="en"),
        "mv": sda_english.add_modal,
        "dn": sda_english.double_negation,
        "neg": sda_english.negate,
        "pi_aug_subject": partial(mark_subject, writing=ENGLISH),
        "pi_aug_clause": partial(mark_clause, writing=ENGLISH),
        "pi_aug_tail": partial(mark_tail, writing=ENGLISH),
    }
    with_word = {
        "mv_aug_verb": lambda tokens, word, _: sda_english.modal_verb(tokens, word),
        "mv_aug_adj": lambda tokens, word, _: sda_english.strong_adjectives(tokens, word),
    }
    _check(data, rules, with_word, " ")


def check_sda_rules_zh(data: Mapping[str, Any]) -> None:
    """PI, MV, DN, NEG and their sub-rules on the Chinese cases."""
    rules = {
        "pi": partial(insert_punctuation, language="zh"),
        "mv": sda_chinese.add_modal,
        "dn": sda_chinese.double_negation,
        "neg": sda_chinese.negate,
        "pi_aug_subject": partial(mark_subject, writing=CHINESE),
        "pi_aug_clause": partial(mark_clause, writing=CHINESE),
        "pi_aug_tail": partial(mark_tail, writing=CHINESE),
    }
    with_word = {"mv_aug_verb": sda_chinese.modal_verb, "mv_aug_adj": sda_chinese.strong_adjective}
    _check(data, rules, with_word, "")


def _check(
    data: Mapping[str, Any],
    rules: Mapping[str, Callable[..., str]],
    with_word: Mapping[str, Callable[[Sequence[Token], str, Dice], str]],
    blank: str,
) -> None:
    assert data["cases"]
    for case in data["cases"]:
        tokens = [Token(**{k: v for k, v in t.items() if k != "i"}) for t in case["tokens"]]
        assert blank.join(t.text for t in tokens) == case["raw"]
        assert set(case) - {"name", "raw", "tokens", "note"} == {*rules, *with_word}, case["name"]
        for name, rule in rules.items():
            _same(f"{case['name']} {name}", outcomes(partial(rule, tokens)), case[name])
        for name, step in with_word.items():
            assert case[name]
            for word, expected in case[name].items():
                _same(f"{case['name']} {name} {word}", outcomes(partial(step, tokens, word)), expected)


def _same(what: str, found: Mapping[str, Any], expected: Sequence[Mapping[str, Any]]) -> None:
    assert {e["output"] for e in expected} == set(found), what
    for e in expected:
        assert abs(float(found[e["output"]]) - e["probability"]) < TOLERANCE, (what, e)
