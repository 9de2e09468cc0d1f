"""SDA's modal verbs, double negation and negation for Chinese, corrected (methods 4.3; D38)."""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice, half, pick
from trainables.methods.sda.fixed import joined, words_of
from trainables.methods.sda.trees import is_mark, main_clause
from trainables.methods.sda.words import (
    ADVERBS_ZH,
    AUXILIARIES,
    MODALS_ZH,
    NEGATED_AT_ROOT_ZH,
    NEGATING_OPENERS_ZH,
    NEGATIONS_ZH,
    OPENERS_ZH,
)

AUXILIARIES_ZH = (*AUXILIARIES, "aux:modal", "cop")  # aux:asp is not one: an aspect particle takes no negation
OWNING = ("没有", "没")  # as verbs they negate 有, "to have"
NEGATED_VERBS = (
    "是", "能", "会", "要", "想", "可以", "可能", "应该", "应当", "必须", "需要", "知道", "敢", "肯", "愿", "愿意",
    "喜欢", "用", "让", "准", "许", "同意", "觉得", "认为", "相信", "希望", "允许", "支持", "存在", "属于", "适合",
)  # fmt: skip  # 不 + one of these in one word is its negation (不能); 不如, 不断, 不同 are words of their own
PROGRESSIVE = ("在", "正在", "正")  # right before a verb: "is doing", of which nothing is to be parted
DEGREES = ("很", "非常", "最", "更", "太", "比较", "十分", "极", "极其", "挺", "好", "真", "特别", "尤其", "多么")


def add_modal(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase before the verbal root or an adverb before the first adjective, else an opener.

    No phrase that ends in 不 comes to stand beside another negation.
    """
    words = words_of(tokens, "zh")
    if half(rng):
        places = [i for i, t in enumerate(tokens) if t.dep == "ROOT" and t.pos.startswith("V")]
        phrases: Sequence[str] = MODALS_ZH
        if places and (_negative(tokens[places[0]].text) or (places[0] and _negating(tokens[places[0] - 1].text))):
            phrases = tuple(p for p in MODALS_ZH if not p.endswith("不"))
        if places and places[0] and tokens[places[0] - 1].text in PROGRESSIVE:
            places = [places[0] - 1]
    else:
        places = [i for i, t in enumerate(tokens) if t.pos == "ADJ" and not (i and tokens[i - 1].text in DEGREES)]
        phrases = ADVERBS_ZH
    words.insert(places[0] if places else 0, pick(rng, phrases if places else OPENERS_ZH))
    return joined(words, "zh")


def double_negation(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: an opener that negates, then the negated sentence; two different openers where nothing else can negate."""
    opener = pick(rng, NEGATING_OPENERS_ZH)
    others = [o for o in NEGATING_OPENERS_ZH if o != opener]
    return joined([opener, *_negated(tokens, rng, others)], "zh")


def negate(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word of the main clause goes (不是 becomes 是), else 不, at 有 没, comes in.

    It comes in before the first auxiliary (aux, aux:modal, auxpass, cop) or verbal root of the main clause, 没有 before
    a progressive (在, 正在). Where there is none, or the word already carries a 不 or 没 that cannot be taken off, an
    opener that negates goes in front.
    """
    return joined(_negated(tokens, rng, NEGATING_OPENERS_ZH), "zh")


def _negated(tokens: Sequence[Token], rng: Dice, openers: Sequence[str]) -> list[str]:
    words = words_of(tokens, "zh")
    return _inside_negated(tokens, words) or [pick(rng, openers), *words]


def _inside_negated(tokens: Sequence[Token], words: Sequence[str]) -> list[str] | None:
    main = list(main_clause(tokens))
    for i in main:
        text = tokens[i].text
        if text in NEGATIONS_ZH:
            rest = [t.text for t in tokens[i + 1 :] if not is_mark(t)]
            if not rest or (i and tokens[i - 1].text == rest[0]):  # 能 不 能, 能 借 不 ask, they do not deny
                return None
            owning = text in OWNING and (tokens[i].pos.startswith("V") or tokens[i].dep == "ROOT")
            left = "有" if owning else "是" if text == "不是" else ""
            if left or tokens[i].dep != "ROOT":
                return [*words[:i], left, *words[i + 1 :]]
    for i in main:
        text = tokens[i].text
        root = tokens[i].dep == "ROOT" and (text in NEGATED_AT_ROOT_ZH or tokens[i].pos.startswith("V"))
        if root and i and text != "有" and tokens[i - 1].text in PROGRESSIVE:
            return [*words[: i - 1], "没有", *words[i - 1 :]]
        if root or tokens[i].dep in AUXILIARIES_ZH:
            negated = None if i and _negating(tokens[i - 1].text) else _word_negated(text)
            return None if negated is None else [*words[:i], negated + words[i][len(text) :], *words[i + 1 :]]
    return None


def _word_negated(text: str) -> str | None:
    """有 -> 没有, 去 -> 不去, 不能 -> 能; None for a word with another 不, 没 or 有 (是不是, 没法, 有关)."""
    if text == "有":
        return "没有"
    if text.startswith("不") and text[1:] in NEGATED_VERBS:
        return text[1:]
    return None if _negative(text) or "不" in text or "没" in text else "不" + text


def _negative(text: str) -> bool:
    return text.startswith(("不", "没", "有"))


def _negating(text: str) -> bool:
    return text.endswith(("不", "没"))
