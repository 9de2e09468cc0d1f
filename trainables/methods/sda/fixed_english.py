"""SDA's modal verbs, double negation and negation for English, corrected (methods 4.3; D22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice, half, pick
from trainables.methods.sda.english import word_negated
from trainables.methods.sda.trees import children_of, main_clause
from trainables.methods.sda.words import (
    ADVERBS_EN,
    AUXILIARIES,
    MODALS_EN,
    NEGATION_OPENERS_EN,
    NEGATIONS_EN,
    PARTICIPLES,
    SUBJECTS,
)

FULL_FORM = {"ca": "can", "wo": "will", "sha": "shall"}  # before a removed n't
INFLECTED = {"have": {"VBZ": "has", "VBD": "had"}, "need": {"VBZ": "needs", "VBD": "needed"}}
BE_TAGS = {"am": "VBP", "'m": "VBP", "are": "VBP", "'re": "VBP", "is": "VBZ", "was": "VBD", "were": "VBD"}
FINITE = ("VBP", "VBZ", "VBD")
UNGRADED = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "next", "last",
    "other", "same", "such", "own", "only", "former", "latter", "previous", "current", "present", "final",
    "initial", "original", "due", "several", "few", "many", "multiple", "numerous", "various", "single", "sole",
    "total", "maximum", "minimum", "average", "further", "more", "most", "less", "least", "individual", "main",
    "major", "principal", "fellow", "official", "daily", "weekly", "monthly", "annual", "northern", "southern",
    "eastern", "western", "national", "international", "regional", "provincial", "local", "urban", "rural",
    "residential", "domestic", "coastal", "left", "right", "upper", "junior", "senior", "titular",
)  # fmt: skip  # adjectives that take none of the adverbs, or not each of them ("many")
NOT_TRUE = "it is not true that"


def add_modal(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase at the main verb or an adverb at one adjective; the other one if the first found no place."""
    steps = (modal_verb, _strong_adjective) if half(rng) else (_strong_adjective, modal_verb)
    edits = (step(tokens, rng) for step in steps)
    return " ".join(next((e for e in edits if e), [t.text for t in tokens]))


def modal_verb(tokens: Sequence[Token], rng: Dice, *, perfect: bool = False) -> list[str] | None:
    """A phrase that agrees with the verb it takes the place of: "is" -> "has to be", "painted" -> "needed to paint".

    perfect: a past verb becomes "have" + participle behind the phrase, "painted" -> "must have painted".

    None where the first auxiliary or root of the main clause is no form of "to be" and no finite full verb, is negated,
    or stands before its subject in a question.
    """
    deciding = (i for i in _outside(tokens) if tokens[i].dep in (*AUXILIARIES, "ROOT") and tokens[i].tag != "TO")
    i = next(deciding, None)
    if i is None or (i + 1 < len(tokens) and tokens[i + 1].text.lower() in NEGATIONS_EN):
        return None
    if tokens[-1].text == "?" and any(t.dep in SUBJECTS for t in tokens[i:]):
        return None
    word = tokens[i].text.lower()
    tag = BE_TAGS.get(word) or ("VBZ" if word == "'s" and tokens[i].lemma == "be" else None)
    verb = "be"
    if tag is None and tokens[i].dep == "ROOT" and tokens[i].tag in FINITE:
        tag, verb = tokens[i].tag, tokens[i].lemma or word
    if tag is None:
        return None
    if perfect and tag == "VBD":
        verb = "have " + ("been" if verb == "be" else PARTICIPLES.get(word, word))
    first, *rest = pick(rng, MODALS_EN).split(" ")
    phrase = [INFLECTED.get(first, {}).get(tag, first), *rest, verb]
    return [*(t.text for t in tokens[:i]), *phrase, *(t.text for t in tokens[i + 1 :])]


def _outside(tokens: Sequence[Token]) -> Iterator[int]:
    """The numbers of the main clause's tokens outside brackets: "( born 1861 )" decides nothing."""
    for i in main_clause(tokens):
        before = [t.text for t in tokens[:i]]
        if before.count("(") <= before.count(")"):
            yield i


def _strong_adjective(tokens: Sequence[Token], rng: Dice) -> list[str] | None:
    """An adverb before the first adjective that has degrees and no adverb yet, its article following suit."""
    words = [t.text for t in tokens]
    for i, token in enumerate(tokens):
        if _gradable(token) and not any(_adverb_or_hyphen(tokens[j]) for j in (i - 1, i + 1) if 0 <= j < len(tokens)):
            adverb = pick(rng, ADVERBS_EN)
            if i and words[i - 1].lower() in ("a", "an"):
                article = "an" if adverb[0] in "aeiou" else "a"
                words[i - 1] = article.capitalize() if words[i - 1][0] == "A" else article
            return [*words[:i], adverb, *words[i:]]
    return None


def _gradable(token: Token) -> bool:
    graded = token.text.isalpha() and token.text.islower() and token.text not in UNGRADED
    return graded and token.pos == "ADJ" and token.tag not in ("JJR", "JJS")


def _adverb_or_hyphen(token: Token) -> bool:
    return token.pos == "ADV" or token.text in ("-", "–")


def double_negation(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: an opener that negates, then the negated sentence."""
    opener = pick(rng, NEGATION_OPENERS_EN)
    return " ".join([opener, *(_negated([_lowered(tokens[0]), *tokens[1:]]) or [NOT_TRUE, *_after_opener(tokens)])])


def negate(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word of the main clause goes ("ca n't" becomes "can"), else one comes in.

    One comes in after the first auxiliary of the main clause or at the verbal root ("did not" + lemma, "not built");
    before a sentence without either, an opener that negates.
    """
    return " ".join(_negated(tokens) or [pick(rng, NEGATION_OPENERS_EN), *_after_opener(tokens)])


def _after_opener(tokens: Sequence[Token]) -> list[str]:
    return [_lowered(tokens[0]).text, *(t.text for t in tokens[1:])]


def _lowered(first: Token) -> Token:
    """The first word in lower case, unless it is I, a name or written with further capitals or digits ("NGC", "X")."""
    text = first.text
    name = first.pos == "PROPN" or first.tag in ("NNP", "NNPS") or text.startswith("I'")
    if name or not (text == "A" or (text[1:].isalpha() and text[1:].islower())):
        return first
    return first._replace(text=text[:1].lower() + text[1:])


def _negated(tokens: Sequence[Token]) -> list[str] | None:
    words = [t.text for t in tokens]
    main = list(_outside(tokens))
    for i in main:
        # A negation word as root is an interjection ("No ."): nothing would be left.
        after = words[i + 1].lower() if i + 1 < len(words) else ""
        if (
            words[i].lower() in NEGATIONS_EN and tokens[i].dep != "ROOT" and after != "only"
        ):  # "not only" denies nothing
            if after == "longer":  # what is used no longer is used, not longer used
                return [*words[:i], *words[i + 2 :]]
            if i and words[i].lower() == "n't":
                stem = words[i - 1]
                full = FULL_FORM.get(stem.lower(), stem)
                words[i - 1] = full.capitalize() if stem[:1].isupper() else full
            del words[i]
            return words
    infinitive = None
    for i in main:
        if tokens[i].tag == "TO" and tokens[i].dep in AUXILIARIES:
            infinitive = i  # labelled aux, but takes no "not" behind it
        elif negated := word_negated(tokens[i]) or (_root_negated(tokens, i) if infinitive is None else None):
            words[i] = negated
            return words
        elif tokens[i].dep == "ROOT":
            if infinitive is None or not tokens[i].tag.startswith("VB"):
                return None
            words[infinitive] = ("Not " if words[infinitive][0] == "T" else "not ") + words[infinitive].lower()
            return words
    return None


def _root_negated(tokens: Sequence[Token], i: int) -> str | None:
    """A root that is a bare verb ("do not go"), a participle ("not built") or a modal ("can not")."""
    token = tokens[i]
    if token.dep != "ROOT":
        return None
    if token.tag == "VBN" and any(tokens[j].dep in SUBJECTS for j in children_of(tokens, i)):
        return f"did not {token.lemma}"  # a past tense that the tagger took for a participle
    before = {"VB": "do not ", "VBN": "not ", "VBG": "not "}.get(token.tag)
    if before is None:
        return f"{token.text} not" if token.tag == "MD" else None
    if token.text[:1].isupper() and token.text[1:].islower():
        return before.capitalize() + token.text.lower()
    return before + token.text
