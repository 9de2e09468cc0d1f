"""What SDA's rules are made of: word lists (methods 4.2), a parse by token numbers, and chance as an argument.

The word lists are in the order of the public code of arXiv:2210.03963. Everything random in an edit comes from a small
interface that `random.Random` fits; so does anything that replays chosen outcomes, which is how tests list every result
of a rule with its exact probability.
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
