"""SDA's rules without the defects of the public code, English and Chinese (methods 4.3; D22, D38).

Same word lists and the same draws as the official rules, except: tokens are found by number, never by their text; a
subject or clause is its whole subtree; negation looks at the main clause only and never negates twice. Every function
takes a parsed sentence of at least one token and returns the text. MV has no defect of this kind: it is the official.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainables.dice import Dice, half, pick
from trainables.parses import Token
from trainables.sda_english import word_negated
from trainables.sda_punctuation import children_of
from trainables.sda_words import (
    AUXILIARIES,
    CLAUSES,
    NEGATED_AT_ROOT_ZH,
    NEGATING_OPENERS_ZH,
    NEGATION_OPENERS_EN,
    NEGATIONS_EN,
    NEGATIONS_ZH,
    SUBJECTS,
    WRITING,
    Writing,
)

QUOTE = '"'
AUXILIARIES_ZH = (*AUXILIARIES, "aux:modal", "cop")  # aux:asp is not one: an aspect particle takes no negation
FULL_FORM = {"ca": "can", "wo": "will", "sha": "shall"}  # before a removed n't
FULL_FORM_ZH = {"不是": "是"}
OWNING_ZH = ("没有", "没")  # as verbs they negate 有, "to have"


def insert_punctuation(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """PI: marks the subject or a clause (a coin says which first), or ends the sentence with an exclamation mark.

    Args:
        tokens: a parsed sentence, at least one token; language: "en" or "zh".
    """
    writing = WRITING[language]
    words = [t.text for t in tokens]
    rules = (_mark_subject, _mark_clause) if half(rng) else (_mark_clause, _mark_subject)
    edits = (rule(tokens, rng, writing) for rule in rules)
    edited = next((e for e in edits if e != words), None) or _exclaim(words, writing)
    return writing.blank.join(edited)


def _mark_subject(tokens: Sequence[Token], rng: Dice, writing: Writing) -> list[str]:
    """Quotes around the subject, or a comma after it unless a mark is there, if the root's first child is one."""
    words = [t.text for t in tokens]
    children = [c for root in _root(tokens) for c in children_of(tokens, root)]
    if children and _base(tokens[children[0]]) in SUBJECTS:
        span = _subtree(tokens, children[0])
        first, last = span[0], span[-1]
        if half(rng):
            return [*words[:first], QUOTE, *words[first : last + 1], QUOTE, *words[last + 1 :]]
        if not _mark(tokens[last]) and not (last + 1 < len(tokens) and _mark(tokens[last + 1])):
            words.insert(last + 1, writing.comma)
    return words


def _mark_clause(tokens: Sequence[Token], rng: Dice, writing: Writing) -> list[str]:
    """A comma before the first clause that does not begin the sentence or follow a mark."""
    del rng
    words = [t.text for t in tokens]
    for i, token in enumerate(tokens):
        if _base(token) in CLAUSES:
            first = _subtree(tokens, i)[0]
            if first >= 1 and not _mark(tokens[first - 1]) and not _mark(tokens[first]):
                words.insert(first, writing.comma)
                break
    return words


def _exclaim(words: Sequence[str], writing: Writing) -> list[str]:
    return [*(words[:-1] if words[-1] in writing.ends else words), writing.strong_end]


def negate_english(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word of the main clause goes ("ca n't" becomes "can"), else one comes in.

    One comes in after the first auxiliary of the main clause or at the root ("did not" + lemma); before a sentence
    whose root takes none, "no"; before one without a root, an opener.
    """
    return " ".join(_negated_english(tokens, rng))


def double_negation_english(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: an opener that negates, then the negated sentence, its first word lower-cased unless I or a proper noun."""
    opener = pick(rng, NEGATION_OPENERS_EN)
    first = tokens[0]
    if first.text != "I" and first.pos != "PROPN":
        first = first._replace(text=first.text[:1].lower() + first.text[1:])
    return " ".join([opener, *_negated_english([first, *tokens[1:]], rng)])


def _negated_english(tokens: Sequence[Token], rng: Dice) -> list[str]:
    words = [t.text for t in tokens]
    main = list(_main_clause(tokens))
    for i in main:
        # A negation word as root is an interjection ("No ."): nothing would be left.
        if words[i].lower() in NEGATIONS_EN and tokens[i].dep != "ROOT":
            if i and words[i].lower() == "n't":
                stem = words[i - 1]
                full = FULL_FORM.get(stem.lower(), stem)
                words[i - 1] = full.capitalize() if stem[:1].isupper() else full
            del words[i]
            return words
    for i in main:
        if tokens[i].tag == "TO":  # the "to" of an infinitive is labelled aux, but takes no "not" behind it
            continue
        if negated := word_negated(tokens[i]):
            words[i] = negated
            return words
        if tokens[i].dep == "ROOT":
            return ["no", *words]
    return [pick(rng, NEGATION_OPENERS_EN), *words]


def negate_chinese(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word of the main clause goes (不是 becomes 是), else 不 comes in.

    It comes in before the first auxiliary (aux, aux:modal, auxpass, cop) or verbal root of the main clause; where there
    is none, an opener that negates goes in front.
    """
    return "".join(_negated_chinese(tokens, rng))


def double_negation_chinese(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: an opener that negates, then the negated sentence."""
    return "".join([pick(rng, NEGATING_OPENERS_ZH), *_negated_chinese(tokens, rng)])


def _negated_chinese(tokens: Sequence[Token], rng: Dice) -> list[str]:
    words = [t.text for t in tokens]
    main = list(_main_clause(tokens))
    for i in main:
        if words[i] in NEGATIONS_ZH:
            owning = words[i] in OWNING_ZH and (tokens[i].pos.startswith("V") or tokens[i].dep == "ROOT")
            left = "有" if owning else FULL_FORM_ZH.get(words[i], "")
            if left or tokens[i].dep != "ROOT":
                return [*words[:i], left, *words[i + 1 :]]
    for i in main:
        root = tokens[i].dep == "ROOT" and (words[i] in NEGATED_AT_ROOT_ZH or tokens[i].pos.startswith("V"))
        if root or tokens[i].dep in AUXILIARIES_ZH:
            words[i] = "不" + words[i]
            return words
    return [pick(rng, NEGATING_OPENERS_ZH), *words]


def _base(token: Token) -> str:
    """The label without its subtype: the Chinese parser's advcl:loc is an advcl (D38)."""
    return token.dep.split(":")[0]


def _mark(token: Token) -> bool:
    return token.pos == "PUNCT"


def _root(tokens: Sequence[Token]) -> list[int]:
    return [i for i, t in enumerate(tokens) if t.dep == "ROOT"][:1]


def _path(tokens: Sequence[Token], i: int) -> Iterator[int]:
    """Token i and its heads up to a root."""
    for _ in tokens:  # bounds the walk, should an annotation contain a circle
        yield i
        if tokens[i].head == i:
            return
        i = tokens[i].head


def _subtree(tokens: Sequence[Token], top: int) -> list[int]:
    """The numbers of a token and of all below it, in token order."""
    return [i for i in range(len(tokens)) if top in _path(tokens, i)]


def _main_clause(tokens: Sequence[Token]) -> Iterator[int]:
    """The numbers of the tokens that are in no subordinate clause."""
    for i in range(len(tokens)):
        if not any(_base(tokens[j]) in CLAUSES for j in _path(tokens, i)):
            yield i
