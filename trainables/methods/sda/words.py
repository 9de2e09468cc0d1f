"""The word lists of SDA's rules (arXiv:2210.03963; methods 4.2), in the order of the public code."""

from __future__ import annotations

from typing import NamedTuple

CLAUSES = ("acl", "advcl", "ccomp", "csubj", "csubjpass", "relcl", "xcomp")  # dependency labels
SUBJECTS = ("nsubj", "nsubjpass")
AUXILIARIES = ("aux", "auxpass")


class Writing(NamedTuple):
    """How a language's tokens and inserted marks are joined to a text.

    blank: between tokens; comma: as an insertion; ends: marks that can end a sentence; strong_end: of the pseudo-code.
    """

    blank: str
    comma: str
    ends: tuple[str, ...]
    strong_end: str


ENGLISH = Writing(blank=" ", comma=",", ends=(",", ".", ";", "!"), strong_end="!")
CHINESE = Writing(blank="", comma="，", ends=("，", "。", "；", "！", "：", ",", ".", ";", "!", ":"), strong_end="！")
WRITING = {"en": ENGLISH, "zh": CHINESE}

NEGATIONS_EN = ("no", "not", "n't")
NEGATIONS_ZH = ("不", "不是", "没有", "没")

MODALS_EN = (
    "must", "have to", "have no choice but", "cannot but", "can't avoid to", "can't help but", "should", "need to",
    "ought to",
)  # fmt: skip
MODALS_ZH = ("不能不", "不会不", "必须", "不得不", "应该", "应当", "可能", "也许")

ADVERBS_EN = (
    "extremely", "quite", "very", "particularly", "especially", "absolutely", "totally", "really", "remarkably",
)  # fmt: skip
ADVERBS_ZH = ("极度", "非常", "很", "尤其", "特别", "极其", "真正地", "显著地")

OPENERS_ZH = ("不得不说，", "不得不承认，", "不可否认，", "毋庸置疑，", "显而易见，", "诚然，")  # of MV

NEGATION_OPENERS_EN = (
    "It isn't that", "The fact is not that", "It is not true that", "It is not the truth that", "Not that",
    "There is no way that", "There is no chance that", "It is impossible that", "It can't be that",
)  # fmt: skip
NEGATION_OPENERS_ZH = (
    "无法理解的是，", "令人惊讶的是，", "令人大跌眼镜的是，", "绝对不可能，", "不可理喻的是，", "这不应该，",
    "这不可能，", "这不会，",
)  # fmt: skip
NEGATING_OPENERS_ZH = ("绝对不可能，", "这不应该，", "这不可能，", "这不会，")  # the four that negate (D38)

BE_FORMS = ("am", "is", "are", "was", "were", "be")
NEGATED_AT_ROOT_EN = (
    "am", "is", "was", "are", "were", "can", "could", "will", "would", "shall", "should", "may", "must", "might",
)  # fmt: skip
NEGATED_AT_ROOT_ZH = ("是", "能", "应该", "可能", "会", "必须")
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
