"""The reference cases of SDA's rules: every possible output of the public code with its exact probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from outcomes import outcomes

from trainables.data.parses import Token
from trainables.methods.sda import rules as official
from trainables.methods.sda.rules import LANGUAGES, Dice

TOLERANCE = 1e-8  # the files' own


def check_sda_rules_en(data: Mapping[str, Any]) -> None:
    """PI, MV, DN, NEG and their sub-rules on the English cases."""
    with_word = {
        "mv_aug_verb": lambda tokens, word, _: official.modal_verb_en(tokens, word),
        "mv_aug_adj": lambda tokens, word, _: official.strong_adjectives_en(tokens, word),
    }
    _check(data, "en", with_word)


def check_sda_rules_zh(data: Mapping[str, Any]) -> None:
    """PI, MV, DN, NEG and their sub-rules on the Chinese cases."""
    _check(data, "zh", {"mv_aug_verb": official.modal_verb_zh, "mv_aug_adj": official.strong_adjective_zh})


def _check(
    data: Mapping[str, Any], language: str, with_word: Mapping[str, Callable[[Sequence[Token], str, Dice], str]]
) -> None:
    writing = LANGUAGES[language]
    rules: dict[str, Callable[..., str]] = {edit: official.RULES[language][edit] for edit in ("pi", "mv", "dn", "neg")}
    for name in ("subject", "clause", "tail"):
        rules[f"pi_aug_{name}"] = partial(getattr(official, f"mark_{name}"), writing=writing)
    assert data["cases"]
    for case in data["cases"]:
        tokens = [Token(**{k: v for k, v in t.items() if k != "i"}) for t in case["tokens"]]
        assert writing.blank.join(t.text for t in tokens) == case["raw"]
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
