"""SDA's rules without the defects of the public code, and as the paper prints them (methods 4.3; D22, D38).

The corrected rules use the same word lists and draws as the official ones, except: tokens are found by number, never by
their text; a subject or clause is its whole subtree; text preserves the blanks of its writing. Every rule takes a
parsed sentence of at least one token and returns the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainables.data.parses import Token
from trainables.methods.sda.rules import (
    AUXILIARIES,
    CLAUSES,
    EN,
    LANGUAGES,
    PARTICIPLES,
    SUBJECTS,
    ZH,
    Dice,
    Language,
    children_of,
    half,
    is_mark,
    label,
    main_clause,
    pick,
    root_of,
    rule_table,
    subtree,
    word_negated,
)

QUOTE = '"'
QUESTION_MARKS = ("?", "？")  # end marks too: the official lists lack them
CLOSING = ('"', "''", "”", "’", "'", ")", "）", "」", "』")


def plain(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """The anchor: the tokens joined (D21), in Chinese with the blanks that the text has, as in "Cisco Systems"."""
    del rng
    return joined(words_of(tokens, language), language)


def words_of(tokens: Sequence[Token], language: str) -> list[str]:
    """The tokens' texts; Chinese ones carry the blank that follows them."""
    return [t.text if language == "en" or not t.space else t.text + " " for t in tokens]


def joined(words: Sequence[str], language: str) -> str:
    """The text of words as `words_of` gives them, with some changed or added."""
    return LANGUAGES[language].blank.join(words).rstrip()


def insert_punctuation(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """PI: marks the subject or a clause (a coin decides which first), or ends the sentence with an exclamation mark."""
    writing = LANGUAGES[language]
    words = words_of(tokens, language)
    rules = (mark_subject, mark_clause) if half(rng) else (mark_clause, mark_subject)
    edits = (rule(tokens, words, rng, writing) for rule in rules)
    edited = next((e for e in edits if e != words), exclaimed(words, writing))
    return joined(edited, language)


def mark_subject(tokens: Sequence[Token], words: Sequence[str], rng: Dice, writing: Language) -> list[str]:
    """Quotes around the subject, or a comma after it unless a mark is there, if the root's first child is one."""
    root = root_of(tokens)
    children = [] if root is None else children_of(tokens, root)
    if children and label(tokens[children[0]]) in SUBJECTS:
        span = subtree(tokens, children[0])
        first, last = span[0], span[-1]
        if half(rng):
            inner = [*words[first:last], words[last].rstrip()]
            return [*words[:first], QUOTE, *inner, QUOTE, *words[last + 1 :]]
        if not is_mark(tokens[last]) and not (last + 1 < len(tokens) and is_mark(tokens[last + 1])):
            return _with_comma(words, last + 1, writing)
    return list(words)


def mark_clause(tokens: Sequence[Token], words: Sequence[str], rng: Dice, writing: Language) -> list[str]:
    """A comma before the first clause that does not begin the sentence or follow a mark."""
    del rng
    for i, token in enumerate(tokens):
        if label(token) in CLAUSES:
            first = subtree(tokens, i)[0]
            if first >= 1 and not is_mark(tokens[first - 1]) and not is_mark(tokens[first]):
                return _with_comma(words, first, writing)
    return list(words)


def _with_comma(words: Sequence[str], place: int, writing: Language) -> list[str]:
    return [*words[: place - 1], words[place - 1].rstrip(), writing.comma, *words[place:]]


def exclaimed(words: Sequence[str], writing: Language) -> list[str]:
    """An exclamation mark in place of the final marks, before closing quotes or brackets, or added."""
    ends = (*writing.ends, *QUESTION_MARKS)
    stop = len(words)
    while stop and words[stop - 1].strip() in CLOSING:
        stop -= 1
    if not stop or words[stop - 1].strip() not in ends:  # ( so ) is closed by no mark
        stop = len(words)
    start = stop
    while start > 1 and words[start - 1].strip() in ends:
        start -= 1
    return [*words[: start - 1], words[start - 1].rstrip(), writing.strong_end, *words[stop:]]


# ------------------------------------------------------------ English
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


def add_modal_en(tokens: Sequence[Token], rng: Dice) -> str:
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
    if i is None or (i + 1 < len(tokens) and tokens[i + 1].text.lower() in EN.negations):
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
    first, *rest = pick(rng, EN.modals).split(" ")
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
        neighbours = [tokens[j] for j in (i - 1, i + 1) if 0 <= j < len(tokens)]
        graded = token.text.isalpha() and token.text.islower() and token.text not in UNGRADED
        graded = graded and token.pos == "ADJ" and token.tag not in ("JJR", "JJS")
        if graded and not any(t.pos == "ADV" or t.text in ("-", "–") for t in neighbours):
            adverb = pick(rng, EN.adverbs)
            if i and words[i - 1].lower() in ("a", "an"):
                article = "an" if adverb[0] in "aeiou" else "a"
                words[i - 1] = article.capitalize() if words[i - 1][0] == "A" else article
            return [*words[:i], adverb, *words[i:]]
    return None


def double_negation_en(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: an opener that negates, then the negated sentence."""
    opener = pick(rng, EN.negation_openers)
    return " ".join([opener, *(_negated_en([_lowered(tokens[0]), *tokens[1:]]) or [NOT_TRUE, *_after_opener(tokens)])])


def negate_en(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word of the main clause goes ("ca n't" becomes "can"), else one comes in.

    One comes in after the first auxiliary of the main clause or at the verbal root ("did not" + lemma, "not built");
    before a sentence without either, an opener that negates.
    """
    return " ".join(_negated_en(tokens) or [pick(rng, EN.negation_openers), *_after_opener(tokens)])


def _after_opener(tokens: Sequence[Token]) -> list[str]:
    return [_lowered(tokens[0]).text, *(t.text for t in tokens[1:])]


def _lowered(first: Token) -> Token:
    """The first word in lower case, unless it is I, a name or written with further capitals or digits ("NGC", "X")."""
    text = first.text
    name = first.pos == "PROPN" or first.tag in ("NNP", "NNPS") or text.startswith("I'")
    if name or not (text == "A" or (text[1:].isalpha() and text[1:].islower())):
        return first
    return first._replace(text=text[:1].lower() + text[1:])


def _negated_en(tokens: Sequence[Token]) -> list[str] | None:
    words = [t.text for t in tokens]
    main = list(_outside(tokens))
    for i in main:
        # "not only" denies nothing. A negation word as root is an interjection ("No ."): nothing would be left.
        after = words[i + 1].lower() if i + 1 < len(words) else ""
        if words[i].lower() in EN.negations and tokens[i].dep != "ROOT" and after != "only":
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
        elif negated := word_negated(tokens[i]) or (_root_negated_en(tokens, i) if infinitive is None else None):
            words[i] = negated
            return words
        elif tokens[i].dep == "ROOT":
            if infinitive is None or not tokens[i].tag.startswith("VB"):
                return None
            words[infinitive] = ("Not " if words[infinitive][0] == "T" else "not ") + words[infinitive].lower()
            return words
    return None


def _root_negated_en(tokens: Sequence[Token], i: int) -> str | None:
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


# ------------------------------------------------------------ Chinese
AUXILIARIES_ZH = (*AUXILIARIES, "aux:modal", "cop")  # aux:asp is not one: an aspect particle takes no negation
OWNING = ("没有", "没")  # as verbs they negate 有, "to have"
NEGATED_VERBS = (
    "是", "能", "会", "要", "想", "可以", "可能", "应该", "应当", "必须", "需要", "知道", "敢", "肯", "愿", "愿意",
    "喜欢", "用", "让", "准", "许", "同意", "觉得", "认为", "相信", "希望", "允许", "支持", "存在", "属于", "适合",
)  # fmt: skip  # 不 + one of these in one word is its negation (不能); 不如, 不断, 不同 are words of their own
PROGRESSIVE = ("在", "正在", "正")  # right before a verb: "is doing", of which nothing is to be parted
DEGREES = ("很", "非常", "最", "更", "太", "比较", "十分", "极", "极其", "挺", "好", "真", "特别", "尤其", "多么")


def add_modal_zh(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase before the verbal root or an adverb before the first adjective, else an opener.

    No phrase that ends in 不 comes to stand beside another negation.
    """
    words = words_of(tokens, "zh")
    if half(rng):
        places = [i for i, t in enumerate(tokens) if t.dep == "ROOT" and t.pos.startswith("V")]
        phrases: Sequence[str] = ZH.modals
        if places and (_negative(tokens[places[0]].text) or (places[0] and _negating(tokens[places[0] - 1].text))):
            phrases = tuple(p for p in ZH.modals if not p.endswith("不"))
        if places and places[0] and tokens[places[0] - 1].text in PROGRESSIVE:
            places = [places[0] - 1]
    else:
        places = [i for i, t in enumerate(tokens) if t.pos == "ADJ" and not (i and tokens[i - 1].text in DEGREES)]
        phrases = ZH.adverbs
    words.insert(places[0] if places else 0, pick(rng, phrases if places else ZH.openers))
    return joined(words, "zh")


def double_negation_zh(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: an opener that negates, then the negated sentence; two different openers where nothing else can negate."""
    opener = pick(rng, ZH.negating_openers)
    others = [o for o in ZH.negating_openers if o != opener]
    return joined([opener, *_negated_zh(tokens, rng, others)], "zh")


def negate_zh(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word of the main clause goes (不是 becomes 是), else 不, at 有 没, comes in.

    It comes in before the first auxiliary (aux, aux:modal, auxpass, cop) or verbal root of the main clause, 没有 before
    a progressive (在, 正在). Where there is none, or the word already carries a 不 or 没 that cannot be taken off, an
    opener that negates goes in front.
    """
    return joined(_negated_zh(tokens, rng, ZH.negating_openers), "zh")


def _negated_zh(tokens: Sequence[Token], rng: Dice, openers: Sequence[str]) -> list[str]:
    words = words_of(tokens, "zh")
    return _inside_negated_zh(tokens, words) or [pick(rng, openers), *words]


def _inside_negated_zh(tokens: Sequence[Token], words: Sequence[str]) -> list[str] | None:
    main = list(main_clause(tokens))
    for i in main:
        text = tokens[i].text
        if text in ZH.negations:
            rest = [t.text for t in tokens[i + 1 :] if not is_mark(t)]
            if not rest or (i and tokens[i - 1].text == rest[0]):  # 能 不 能, 能 借 不 ask, they do not deny
                return None
            owning = text in OWNING and (tokens[i].pos.startswith("V") or tokens[i].dep == "ROOT")
            left = "有" if owning else "是" if text == "不是" else ""
            if left or tokens[i].dep != "ROOT":
                return [*words[:i], left, *words[i + 1 :]]
    for i in main:
        text = tokens[i].text
        root = tokens[i].dep == "ROOT" and (text in ZH.negated_at_root or tokens[i].pos.startswith("V"))
        if root and i and text != "有" and tokens[i - 1].text in PROGRESSIVE:
            return [*words[: i - 1], "没有", *words[i - 1 :]]
        if root or tokens[i].dep in AUXILIARIES_ZH:
            negated = None if i and _negating(tokens[i - 1].text) else _word_negated_zh(text)
            return None if negated is None else [*words[:i], negated + words[i][len(text) :], *words[i + 1 :]]
    return None


def _word_negated_zh(text: str) -> str | None:
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


# ------------------------------------------------------------ as printed, English
PREFIX = "Not that"


def printed_punctuation(tokens: Sequence[Token], rng: Dice) -> str:
    """PI (Algorithm 1): a comma before a clause, else quotes around or a comma after the subject, else a final "!"."""
    words = [t.text for t in tokens]
    edits = (rule(tokens, words, rng, EN) for rule in (mark_clause, mark_subject))
    return " ".join(next((e for e in edits if e != words), exclaimed(words, EN)))


def printed_modal(tokens: Sequence[Token], rng: Dice) -> str:
    """MV (Algorithm 2): a modal phrase at the main verb, no adverbs; unchanged where none fits."""
    return " ".join(modal_verb(tokens, rng, perfect=True) or [t.text for t in tokens])


def printed_double_negation(tokens: Sequence[Token], rng: Dice) -> str:
    """DN (Algorithm 3): negations go, then auxiliaries and the root verb are negated until there are two.

    The pseudo-code writes "do not" before any root verb, whatever its tense.
    """
    del rng
    kept = [t for t in tokens if t.text not in EN.negations]
    count = len(tokens) - len(kept)
    words = []
    for token in kept:
        negated = _printed_negated(token) if count < 2 else None
        count += negated is not None
        words.append(negated or token.text)
    return " ".join([PREFIX, *words] if count == 1 else words)


def _printed_negated(token: Token) -> str | None:
    found = word_negated(token)
    if token.dep == "ROOT" and token.tag in FINITE and not (found or "").endswith(" not"):
        return f"do not {token.lemma or token.text}"
    return found


_SHARED = {"none": plain, "pi": insert_punctuation}
RULES = {
    "en": rule_table("en", _SHARED, mv=add_modal_en, dn=double_negation_en, neg=negate_en),
    "zh": rule_table("zh", _SHARED, mv=add_modal_zh, dn=double_negation_zh, neg=negate_zh),
}
PRINTED = {  # no Chinese: the paper prints none
    "en": RULES["en"] | {"pi": printed_punctuation, "mv": printed_modal, "dn": printed_double_negation},
}
