"""Faults of SDA's edits that a text shows without a reader, counted over real sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from trainables.data.parses import Parses, Token
from trainables.methods.sda.edits import rule_for
from trainables.methods.sda.words import EN

DRAWS = 4  # of every rule on every sentence
_UNINFLECTED = re.compile(r"\b(?:need to|have to|have no choice but) ")


def english_faults(plain: str, edited: dict[str, str], tokens: Sequence[Token]) -> list[str]:
    """The faults of one sentence's edits `pi`, `mv`, `dn`, `neg`; "questions" and the like are counted beside them."""
    found = []
    words = edited["mv"].split(" ")
    adverbs = sum(edited["mv"].lower().split(" ").count(a) - plain.lower().split(" ").count(a) for a in EN.adverbs)
    if adverbs > 0:
        found.append("adverb edits")
        if adverbs > 1:
            found.append("several adverbs")
        if any(_wrong_article(a, b) and b.lower() in EN.adverbs for a, b in pairwise(words)):
            found.append("wrong article")
    elif edited["mv"] != plain:
        found.append("modal edits")
        verb = next(t for t, word in zip(tokens, words, strict=False) if t.text != word)
        added = len(_UNINFLECTED.findall(edited["mv"])) > len(_UNINFLECTED.findall(plain))
        if added and (verb.tag in ("VBZ", "VBD") or verb.text.lower() in ("is", "was", "were")):
            found.append("broken agreement")
    if plain.endswith("?"):
        found.append("questions")
        if edited["pi"].endswith("? !"):
            found.append("? !")
    rest = next((edited["dn"][len(o) + 1 :] for o in EN.negation_openers if edited["dn"].startswith(o + " ")), None)
    first = tokens[0].text
    if rest and len(first) > 1 and first[:2].isupper() and rest.startswith(first[0].lower() + first[1:]):
        found.append("acronym in lower case")
    if edited["neg"].startswith("no "):
        found.append("no in front")
    return found


def _wrong_article(article: str, word: str) -> bool:
    return article.lower() == ("a" if word[0].lower() in "aeiou" else "an")


def chinese_faults(plain: str, edited: dict[str, str], _: Sequence[Token]) -> list[str]:
    """As `english_faults`; `plain` is the line of the corpus."""
    found = [f"{edit}: 不 before 有, 不, 没" for edit in ("mv", "dn", "neg") if _double(edited[edit]) > _double(plain)]
    if plain.endswith(("?", "？")):
        found.append("questions")
        if re.search("[?？]！$", edited["pi"]):
            found.append("？！")
    names = re.findall(r"[A-Za-z]+ [A-Za-z]+", plain)
    if names:
        found.append("Latin names of several words")
        if any(name not in edited["none"] for name in names):
            found.append("blank lost in a name")
    return found


def _double(text: str) -> int:
    return len(re.findall("不(?=有|不|没)", text))


def count_faults(texts: Sequence[str], parses: Parses, rule_set: str, language: str) -> Counter[str]:
    """How many of the (sentence, draw) pairs have each fault; "sentences" is the number of pairs."""
    faults: Callable[..., list[str]] = english_faults if language == "en" else chinese_faults
    rules = {edit: rule_for(edit, rule_set, language) for edit in ("none", "pi", "mv", "dn", "neg")}
    total: Counter[str] = Counter()
    for number, (text, tokens) in enumerate(zip(texts, parses.sentences(), strict=True)):
        for draw in range(DRAWS):
            rng = Random(number * DRAWS + draw)
            edited = {edit: rule(tokens, rng) for edit, rule in rules.items()}
            total.update(["sentences", *faults(edited["none"] if language == "en" else text, edited, tokens)])
    return total
