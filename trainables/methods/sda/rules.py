"""SDA's rules as in its public code, English and Chinese (arXiv:2210.03963; methods 4.2), and what they are made of:
word lists in the order of that code, a parse by token numbers, and chance as an argument.

PI inserts punctuation, MV adds modal verbs or adverbs, DN negates twice, NEG once. The defects of the public code are
preserved on purpose (D22, D38), also where it departs from the paper: a token is found by the first equal word, quotes
are single, and in Chinese PI's fallbacks do not run. `corrected` is the repaired version. Every rule takes a parsed
sentence of at least one token and returns the text, tokens joined by blanks (Chinese: without). All chance comes from
`Dice`, which `random.Random` fits; tests replay chosen outcomes and so list every result with its exact probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from trainables.data.parses import Token

CLAUSES = ("acl", "advcl", "ccomp", "csubj", "csubjpass", "relcl", "xcomp")  # dependency labels
SUBJECTS = ("nsubj", "nsubjpass")
AUXILIARIES = ("aux", "auxpass")


class Language(NamedTuple):
    """A language's word lists, and how its tokens and inserted marks are joined to a text.

    blank: between tokens; comma: as an insertion; ends: marks that can end a sentence; strong_end: of the pseudo-code;
    negated_at_root: roots that take a negation themselves; openers: of MV; negation_openers: of DN and NEG;
    negating_openers: the ones among them that negate (D38).
    """

    blank: str
    comma: str
    ends: tuple[str, ...]
    strong_end: str
    negations: tuple[str, ...]
    modals: tuple[str, ...]
    adverbs: tuple[str, ...]
    negated_at_root: tuple[str, ...]
    negation_openers: tuple[str, ...]
    negating_openers: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()


EN = Language(
    blank=" ", comma=",", ends=(",", ".", ";", "!"), strong_end="!",
    negations=("no", "not", "n't"),
    modals=(
        "must", "have to", "have no choice but", "cannot but", "can't avoid to", "can't help but", "should", "need to",
        "ought to",
    ),
    adverbs=(
        "extremely", "quite", "very", "particularly", "especially", "absolutely", "totally", "really", "remarkably",
    ),
    negated_at_root=(
        "am", "is", "was", "are", "were", "can", "could", "will", "would", "shall", "should", "may", "must", "might",
    ),
    negation_openers=(
        "It isn't that", "The fact is not that", "It is not true that", "It is not the truth that", "Not that",
        "There is no way that", "There is no chance that", "It is impossible that", "It can't be that",
    ),
)  # fmt: skip
ZH = Language(
    blank="", comma="，", ends=("，", "。", "；", "！", "：", ",", ".", ";", "!", ":"), strong_end="！",
    negations=("不", "不是", "没有", "没"),
    modals=("不能不", "不会不", "必须", "不得不", "应该", "应当", "可能", "也许"),
    adverbs=("极度", "非常", "很", "尤其", "特别", "极其", "真正地", "显著地"),
    negated_at_root=("是", "能", "应该", "可能", "会", "必须"),
    negation_openers=(
        "无法理解的是，", "令人惊讶的是，", "令人大跌眼镜的是，", "绝对不可能，", "不可理喻的是，", "这不应该，",
        "这不可能，", "这不会，",
    ),
    negating_openers=("绝对不可能，", "这不应该，", "这不可能，", "这不会，"),
    openers=("不得不说，", "不得不承认，", "不可否认，", "毋庸置疑，", "显而易见，", "诚然，"),
)  # fmt: skip
LANGUAGES = {"en": EN, "zh": ZH}
PARTICIPLES = {  # past tense -> past participle, where they differ; not from the public code
    "arose": "arisen", "ate": "eaten", "awoke": "awoken", "beat": "beaten", "became": "become", "began": "begun",
    "blew": "blown", "bore": "borne", "broke": "broken", "came": "come", "chose": "chosen", "did": "done",
    "drank": "drunk", "drew": "drawn", "drove": "driven", "fell": "fallen", "flew": "flown", "forbade": "forbidden",
    "forgave": "forgiven", "forgot": "forgotten", "froze": "frozen", "gave": "given", "grew": "grown", "hid": "hidden",
    "knew": "known", "lay": "lain", "mistook": "mistaken", "overcame": "overcome", "overthrew": "overthrown",
    "oversaw": "overseen", "ran": "run", "rang": "rung", "rode": "ridden", "rose": "risen", "sang": "sung",
    "sank": "sunk", "saw": "seen", "shook": "shaken", "showed": "shown", "spoke": "spoken", "sprang": "sprung",
    "stole": "stolen", "swam": "swum", "swore": "sworn", "threw": "thrown", "took": "taken",
    "tore": "torn", "underwent": "undergone", "undertook": "undertaken", "went": "gone", "withdrew": "withdrawn",
    "woke": "woken", "wore": "worn", "wove": "woven", "wrote": "written",
}  # fmt: skip


# ------------------------------------------------------------ parses
def label(token: Token) -> str:
    """The dependency label without its subtype: the Chinese parser's advcl:loc is an advcl (D38)."""
    return token.dep.split(":")[0]


def is_mark(token: Token) -> bool:
    return token.pos == "PUNCT"


def root_of(tokens: Sequence[Token]) -> int | None:
    """The number of the first root."""
    return next((i for i, t in enumerate(tokens) if t.dep == "ROOT"), None)


def children_of(tokens: Sequence[Token], i: int) -> list[int]:
    """The numbers of the direct children of token i, in token order."""
    return [j for j, t in enumerate(tokens) if t.head == i and j != i]


def subtree(tokens: Sequence[Token], top: int) -> list[int]:
    """The numbers of a token and of all below it, in token order."""
    return [i for i in range(len(tokens)) if top in _path(tokens, i)]


def main_clause(tokens: Sequence[Token]) -> Iterator[int]:
    """The numbers of the tokens that are in no subordinate clause."""
    for i in range(len(tokens)):
        if not any(label(tokens[j]) in CLAUSES for j in _path(tokens, i)):
            yield i


def _path(tokens: Sequence[Token], i: int) -> Iterator[int]:
    """Token i and its heads up to a root."""
    for _ in tokens:  # bounds the walk, should an annotation contain a circle
        yield i
        if tokens[i].head == i:
            return
        i = tokens[i].head


# ------------------------------------------------------------ chance
T = TypeVar("T")


class Dice(Protocol):
    """The only source of chance of an edit."""

    def randrange(self, stop: int, /) -> int:
        """A uniform whole number in 0..stop - 1."""


def half(rng: Dice) -> bool:
    """A fair coin."""
    return rng.randrange(2) == 0


def pick(rng: Dice, options: Sequence[T]) -> T:
    """One of `options` (not empty), each equally likely."""
    return options[rng.randrange(len(options))]


def pick_places(rng: Dice, n: int, count: int) -> list[int]:
    """`count` distinct numbers of 0..n - 1 in rising order, every set equally likely (a partial shuffle)."""
    places = list(range(n))
    for i in range(count):
        j = i + rng.randrange(n - i)
        places[i], places[j] = places[j], places[i]
    return sorted(places[:count])


Rule = Callable[[Sequence[Token], Dice], str]  # an edit of a parsed sentence


def rule_table(language: str, shared: Mapping[str, Callable[..., str]], **own: Rule) -> dict[str, Rule]:
    """An edit's name -> its rule ("none" is the anchor). shared: rules that take the language; own: of one language."""
    return {**{name: partial(rule, language=language) for name, rule in shared.items()}, **own}


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

    As the code deletes while it iterates, it skips the token directly after a deleted one (D22).
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
