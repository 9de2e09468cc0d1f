"""SDA's rules as in its public code, English and Chinese (arXiv:2210.03963; methods 4.2).

PI inserts punctuation, MV adds modal verbs or adverbs, DN negates twice, NEG once. The defects of the public code are
preserved on purpose (D22, D38), also where it departs from the paper: a token is found by the first equal word, quotes
are single, and in Chinese PI's fallbacks do not run. `corrected` is the repaired version. Every rule takes a parsed
sentence of at least one token and returns the text, tokens joined by blanks (Chinese: without).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.words import (
    AUXILIARIES,
    CLAUSES,
    EN,
    LANGUAGES,
    SUBJECTS,
    ZH,
    Dice,
    Language,
    children_of,
    half,
    pick,
    root_of,
    rule_table,
)

BE_FORMS = ("am", "is", "are", "was", "were", "be")


def plain(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """The anchor: the tokens joined as every edit joins them (D21)."""
    del rng
    return LANGUAGES[language].blank.join(t.text for t in tokens)


def insert_punctuation(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """Marks the subject or a clause (which first is a coin's choice), or the end of the sentence if neither is there.

    Args:
        tokens: a parsed sentence, at least one token; language: "en" or "zh".
    Returns: the joined text. In Chinese the code compares a text with blanks to one without, so that the fallbacks run
        for one-token sentences only and about half of the sentences stay as they are (D22).
    """
    writing = LANGUAGES[language]
    compared = " ".join(t.text for t in tokens)
    rules = (mark_subject, mark_clause) if half(rng) else (mark_clause, mark_subject)
    for rule in (*rules, mark_tail):
        edited = rule(tokens, rng, writing)
        if edited != compared:
            break
    return edited


def mark_subject(tokens: Sequence[Token], rng: Dice, writing: Language) -> str:
    """Quotes around the subject, or a comma after it, if the root's first child is one."""
    words = [t.text for t in tokens]
    root = root_of(tokens)
    children = [] if root is None else children_of(tokens, root)
    if children and tokens[children[0]].dep in SUBJECTS:
        span = [children[0], *children_of(tokens, children[0])]
        places = [words.index(words[i]) for i in span]
        first, last = min(places), max(places)
        if half(rng):
            words[first] = "'" + writing.blank + words[first]
            words[last] += writing.blank + "'"
        else:
            words[last] += writing.blank + writing.comma
    return writing.blank.join(words)


def mark_clause(tokens: Sequence[Token], rng: Dice, writing: Language) -> str:
    """A comma before the first child of the first clause that has a place for one."""
    del rng
    words = [t.text for t in tokens]
    labels = [t.dep for t in tokens]
    for label in labels:
        if label not in CLAUSES:
            continue
        children = children_of(tokens, labels.index(label))
        if not children:
            break
        place = words.index(words[children[0]])
        if place >= 1:
            words[place - 1] += writing.blank + writing.comma
            break
    return writing.blank.join(words)


def mark_tail(tokens: Sequence[Token], rng: Dice, writing: Language) -> str:
    """Quotes around the sentence, or a random end mark in place of the present one (perhaps the same) or added."""
    words = [t.text for t in tokens]
    if half(rng):
        words = ["'", *words, "'"]
    else:
        if words[-1] in writing.ends:
            words.pop()
        words.append(pick(rng, writing.ends))
    return writing.blank.join(words)


def double_negation(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """DN: negations removed and added until there are two, an opener standing in for a missing second one.

    In Chinese the parts of speech are those of the sentence before the removal, so out of step after one (D22).
    """
    writing = LANGUAGES[language]
    kept, count = without_negations(tokens, writing.negations)
    words = [t.text for t in kept]
    for i, token in enumerate(kept):
        if count == 2:  # a higher count goes on, as in the code (D22)
            break
        if language == "en":
            negated = word_negated(token)
        else:
            takes_one = token.dep in AUXILIARIES or _negated_root(token, tokens[i].pos)
            negated = "不" + token.text if takes_one else None
        if negated is not None:
            words[i] = negated
            count += 1
    if count == 1:
        words.insert(0, pick(rng, writing.negation_openers))
    return writing.blank.join(words)


def without_negations(tokens: Sequence[Token], negations: Sequence[str]) -> tuple[list[Token], int]:
    """The tokens less the negation words, and how many these were.

    As the code deletes while it iterates, the token directly after a deleted one is not looked at (D22).
    """
    kept, count, after_deletion = [], 0, False
    for token in tokens:
        after_deletion = token.text in negations and not after_deletion
        if after_deletion:
            count += 1
        else:
            kept.append(token)
    return kept, count


# ------------------------------------------------------------ English
def add_modal_en(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase at the verb or an adverb at the adjectives; the other one if the first changed nothing."""
    text = " ".join(t.text for t in tokens)
    steps = ((modal_verb_en, EN.modals), (strong_adjectives_en, EN.adverbs))
    for step, phrases in steps if half(rng) else reversed(steps):
        edited = step(tokens, pick(rng, phrases))
        if edited != text:
            return edited
    return text


def modal_verb_en(tokens: Sequence[Token], phrase: str) -> str:
    """`phrase` at the first auxiliary or root: "is" -> "has to be", "painted" -> "had to paint"."""
    words = [t.text for t in tokens]
    deciding = (i for i, t in enumerate(tokens) if t.dep in AUXILIARIES or t.dep == "ROOT")
    i = next(deciding, None)
    if i is not None:
        edited = _modal_auxiliary(tokens[i], phrase) if tokens[i].dep in AUXILIARIES else _modal_root(tokens[i], phrase)
        words[i] = edited or words[i]
    return " ".join(words)


def _modal_auxiliary(token: Token, phrase: str) -> str | None:
    if token.text in ("am", "are", "be"):
        return phrase + " be"
    if token.text == "is":
        return phrase.replace("have", "has") + " be"
    if token.text in ("was", "were"):
        return phrase.replace("have", "had") + " be"
    return None


def _modal_root(token: Token, phrase: str) -> str | None:
    if token.text.lower() in BE_FORMS:
        return phrase + " be"
    have = {"VBP": "have", "VBZ": "has", "VBD": "had"}.get(token.tag)
    return None if have is None else f"{phrase.replace('have', have)} {token.lemma}"


def strong_adjectives_en(tokens: Sequence[Token], adverb: str) -> str:
    """`adverb` before every adjective."""
    return " ".join(f"{adverb} {t.text}" if t.pos == "ADJ" else t.text for t in tokens)


def word_negated(token: Token) -> str | None:
    """The auxiliary or root with its negation, or None where the rules have none."""
    if token.dep in AUXILIARIES or (token.dep == "ROOT" and token.text.lower() in EN.negated_at_root):
        return token.text + " not"
    do = {"VBP": "do", "VBZ": "does", "VBD": "did"}.get(token.tag)
    return f"{do} not {token.lemma}" if token.dep == "ROOT" and do else None


def negate_en(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word, auxiliary or root decides; "did n't" becomes "did not n't" (D22)."""
    words = [t.text for t in tokens]
    for i, token in enumerate(tokens):
        if token.text in EN.negations:
            del words[i]
        elif negated := word_negated(token):
            words[i] = negated
        elif token.dep == "ROOT":
            words.insert(0, "no")
        else:
            continue
        return " ".join(words)
    return " ".join([pick(rng, EN.negation_openers), *words])


# ------------------------------------------------------------ Chinese
def add_modal_zh(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase before the root verb or an adverb before the first adjective, else an opener."""
    step, phrases = (modal_verb_zh, ZH.modals) if half(rng) else (strong_adjective_zh, ZH.adverbs)
    return step(tokens, pick(rng, phrases), rng)  # each always changes the sentence: no second step as in English


def modal_verb_zh(tokens: Sequence[Token], phrase: str, rng: Dice) -> str:
    """`phrase` before the first root that is a verb, else an opener in front."""
    roots = (i for i, t in enumerate(tokens) if t.dep == "ROOT" and t.pos.startswith("V"))
    return _before(tokens, next(roots, None), phrase, rng)


def strong_adjective_zh(tokens: Sequence[Token], adverb: str, rng: Dice) -> str:
    """`adverb` before the first adjective, else an opener in front."""
    return _before(tokens, next((i for i, t in enumerate(tokens) if t.pos == "ADJ"), None), adverb, rng)


def _before(tokens: Sequence[Token], i: int | None, phrase: str, rng: Dice) -> str:
    words = [t.text for t in tokens]
    words.insert(i or 0, pick(rng, ZH.openers) if i is None else phrase)
    return "".join(words)


def negate_zh(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word, auxiliary (an English " not" follows it, D38) or verbal root decides."""
    words = [t.text for t in tokens]
    for i, token in enumerate(tokens):
        if token.text in ZH.negations:
            del words[i]
        elif token.dep in AUXILIARIES:
            words[i] += " not"
        elif _negated_root(token, token.pos):
            words[i] = "不" + token.text
        else:
            continue
        return "".join(words)
    return "".join([pick(rng, ZH.negation_openers), *words])


def _negated_root(token: Token, pos: str) -> bool:
    return token.dep == "ROOT" and (token.text in ZH.negated_at_root or pos.startswith("V"))


_SHARED = {"none": plain, "pi": insert_punctuation, "dn": double_negation}
RULES = {
    "en": rule_table("en", _SHARED, mv=add_modal_en, neg=negate_en),
    "zh": rule_table("zh", _SHARED, mv=add_modal_zh, neg=negate_zh),
}
