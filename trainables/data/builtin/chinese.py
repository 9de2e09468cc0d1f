"""Chinese sentences of frames, and the dependency parse of such a sentence (labels of spaCy's Chinese models)."""

from __future__ import annotations

from functools import cache
from random import Random

from trainables.data.builtin.frames import Frame
from trainables.data.builtin.lexicon import Concept, concepts, pick
from trainables.data.parses import Token

_FUNCTION_WORDS = {
    "在": ("ADP", "P"), "把": ("PART", "BA"), "被": ("ADP", "SB"), "的": ("PART", "DEC"), "了": ("PART", "AS"),
    "里": ("PART", "LC"), "上": ("PART", "LC"), "边": ("PART", "LC"),
    "不": ("ADV", "AD"), "没有": ("ADV", "AD"), "正在": ("ADV", "AD"), "很": ("ADV", "AD"), "会": ("VERB", "VV"),
    "因为": ("ADP", "P"), "由于": ("ADP", "P"), "这个": ("DET", "DT"), "那个": ("DET", "DT"),
    "，": ("PUNCT", "PU"), "。": ("PUNCT", "PU"),
}  # fmt: skip
_CLAUSE_VERBS = (
    "戴", "有", "留", "长", "来自", "打", "撑", "背", "带",
    "下雨", "来临", "下雪", "飘落", "结束", "散场", "到", "出现", "下降", "降低", "用完", "耗尽",
)  # fmt: skip
_LONGEST_WORD = 5  # characters
_BA_FAMILIES = ("care", "clean", "move", "steer", "own", "keep", "dine", "press", "tend")  # 把 wants a visible effect


def write(frame: Frame, rng: Random) -> str:
    """One of the many Chinese sentences with the meaning of `frame`."""
    if frame.action is None:
        return "".join(_state(frame, rng))
    return "".join(_event(frame, rng))


def _state(frame: Frame, rng: Random) -> list[str]:
    assert frame.quality is not None
    front, middle, behind = _circumstances(frame, rng)
    degree = "不" if frame.negated else "很"
    subject = _subject(frame, rng, with_quality=False)
    return [*front, *subject, *middle, degree, pick(rng, frame.quality.chinese), *behind, "。"]


def _event(frame: Frame, rng: Random) -> list[str]:
    assert frame.action is not None
    front, middle, behind = _circumstances(frame, rng)
    subject, verb = _subject(frame, rng), pick(rng, frame.action.chinese)
    patient = _noun_phrase(frame.object, rng) if frame.object else []
    past = frame.time is not None and frame.time.family == "past"
    not_done = ["没有"] if frame.negated else []
    done = [] if frame.negated else ["了"]
    order = rng.random()
    if patient and order < 0.2:
        core = [*subject, *middle, *not_done, "把", *patient, verb, *done]
        if frame.action.family in _BA_FAMILIES:
            return [*front, *core, *behind, "。"]
    if patient and order < 0.4:
        return [*front, *patient, *middle, *not_done, "被", *subject, verb, *done, *behind, "。"]
    if past or rng.random() < 0.4:
        return [*front, *subject, *middle, *not_done, verb, *done, *patient, *behind, "。"]
    before = pick(rng, (["不"], ["不", "会"]) if frame.negated else ([], ["正在"], ["会"]))
    return [*front, *subject, *middle, *before, verb, *patient, *behind, "。"]


def _circumstances(frame: Frame, rng: Random) -> tuple[list[str], list[str], list[str]]:
    """Time, place and reason: words in front of the subject, behind it and behind the core."""
    front: list[str] = []
    middle: list[str] = []
    behind: list[str] = []
    if frame.reason is not None:
        reason = pick(rng, frame.reason.chinese).split()
        if rng.random() < 0.6:
            front += [*reason, "，"]
        else:
            behind += ["，", *reason]
    if frame.time is not None:
        time = pick(rng, frame.time.chinese)
        if rng.random() < 0.5:
            front += [time, "，"] if rng.random() < 0.5 else [time]
        else:
            middle.append(time)
    if frame.place is not None:
        middle += ["在", *pick(rng, frame.place.chinese).split()]
    return front, middle, behind


def _subject(frame: Frame, rng: Random, with_quality: bool = True) -> list[str]:
    quality = [pick(rng, frame.quality.chinese), "的"] if frame.quality and with_quality else []
    description = pick(rng, frame.description.chinese).split() if frame.description else []
    return [*quality, *description, *_noun_phrase(frame.agent, rng)]


def _noun_phrase(noun: Concept, rng: Random) -> list[str]:
    determiner = [pick(rng, ("这个", "那个"))] if rng.random() < 0.25 else []
    return [*determiner, pick(rng, noun.chinese)]


@cache
def _lexicon() -> dict[str, tuple[str, str]]:
    """Word -> (coarse tag, fine tag)."""
    tags = {"action": ("VERB", "VV"), "quality": ("ADJ", "JJ"), "time": ("NOUN", "NT")}
    known = {
        word: tags.get(concept.kind, ("NOUN", "NN"))
        for concept in concepts()
        for phrase in concept.chinese
        for word in phrase.split()
    }
    return known | dict.fromkeys(_CLAUSE_VERBS, ("VERB", "VV")) | _FUNCTION_WORDS


@cache
def concept_words() -> dict[str, tuple[Concept, ...]]:
    """Content word -> the concepts it stands for."""
    found: dict[str, dict[Concept, None]] = {}
    for concept in concepts():
        for phrase in concept.chinese:
            for word in phrase.split():
                if word not in _FUNCTION_WORDS:
                    found.setdefault(word, {})[concept] = None
    return {word: tuple(of) for word, of in found.items()}


def function_words() -> list[str]:
    """Words without a concept of their own, marks excluded."""
    return [word for word, (coarse, _) in _FUNCTION_WORDS.items() if coarse != "PUNCT"]


def parse(sentence: str) -> list[Token]:
    """Dependency parse of a sentence that `write` made.

    Raises: ValueError naming the first place that the builtin grammar does not know.
    """
    return _Reader(_segment(sentence), sentence).read()


def _segment(sentence: str) -> list[str]:
    """Words by the longest match from the left (no two words of the lexicon are confused by it)."""
    lexicon, words, at = _lexicon(), [], 0
    while at < len(sentence):
        fits = (sentence[at : at + size] for size in range(_LONGEST_WORD + 1, 0, -1))
        word = next((word for word in fits if word in lexicon), None)
        if word is None:
            raise ValueError(f"expected words of the builtin Chinese corpus, got {sentence[at]!r} in {sentence!r}")
        words.append(word)
        at += len(word)
    return words


class _Reader:
    """One left-to-right pass over the words; each method reads one phrase from `self.at` on and returns its head."""

    def __init__(self, words: list[str], sentence: str) -> None:
        self.words, self.sentence, self.at = words, sentence, 0
        self.tags = [_lexicon()[word] for word in words]
        self.heads, self.deps = [-1] * len(words), [""] * len(words)

    def read(self) -> list[Token]:
        root = self.clause()
        self.link(root, root, "ROOT")
        if self.at != len(self.words) or "" in self.deps:
            raise ValueError(f"expected a sentence of the builtin Chinese grammar, got {self.sentence!r}")
        return [
            Token(word, word, coarse, fine, dep, head)
            for word, (coarse, fine), dep, head in zip(self.words, self.tags, self.deps, self.heads, strict=True)
        ]

    def is_next(self, *wanted: str) -> bool:
        """Whether the next word has one of these tags, or is one of these words."""
        if self.at == len(self.words):
            return False
        return bool({self.words[self.at], *self.tags[self.at]} & set(wanted))

    def take(self, *wanted: str) -> int:
        if not self.is_next(*wanted):
            got = self.words[self.at] if self.at < len(self.words) else "the end"
            raise ValueError(f"expected {' or '.join(wanted)}, got {got!r} in {self.sentence!r}")
        self.at += 1
        return self.at - 1

    def link(self, token: int, head: int, dep: str) -> None:
        self.heads[token], self.deps[token] = head, dep

    def clause(self) -> int:
        """Circumstances, subject, circumstances, predicate, [object], [circumstance] [。]; returns the predicate."""
        before = self.circumstances()
        subject = self.noun_phrase()
        before += self.circumstances()
        while self.is_next("AD", "会"):
            before.append((token := self.take("AD", "会"), self.adverb_label(token)))
        passive = self.is_next("被")
        if passive:
            by = self.take("被")
            before += [(by, "auxpass"), (self.noun_phrase(), "nsubj")]
        elif self.is_next("把"):
            before += [(self.take("把"), "aux:ba"), (self.noun_phrase(), "dobj")]
        verb = self.take("VV", "JJ")
        if self.tags[verb][1] == "JJ":  # an adjective that is the predicate counts as a verb
            self.tags[verb] = ("VERB", "VA")
        self.link(subject, verb, "nsubjpass" if passive else "nsubj")
        if self.is_next("了"):
            before.append((self.take("了"), "aux:asp"))
        if self.is_next("NN", "DT"):
            before.append((self.noun_phrase(), "dobj"))
        if self.is_next("，") and self.words[self.at + 1] in ("因为", "由于"):
            before += [(self.take("，"), "punct"), self.reason()]
        if self.is_next("。"):
            before.append((self.take("。"), "punct"))
        for token, dep in before:
            self.link(token, verb, dep)
        return verb

    def adverb_label(self, token: int) -> str:
        return {"不": "neg", "没有": "neg", "会": "aux:modal"}.get(self.words[token], "advmod")

    def circumstances(self) -> list[tuple[int, str]]:
        """Reason, time and place with their labels, and the commas that set them off."""
        found = []
        while self.is_next("因为", "由于", "NT", "在", "，"):
            if self.is_next("因为", "由于"):
                found.append(self.reason())
            elif self.is_next("NT"):
                found.append((self.take("NT"), "nmod:tmod"))
            elif self.is_next("，"):
                found.append((self.take("，"), "punct"))
            else:
                found.append((self.place(), "nmod:prep"))
        return found

    def place(self) -> int:
        preposition, noun = self.take("在"), self.take("NN")
        self.link(preposition, noun, "case")
        if self.is_next("LC"):
            self.link(self.take("LC"), noun, "case")
        return noun

    def reason(self) -> tuple[int, str]:
        """因为 [subject] verb."""
        mark, before = self.take("因为", "由于"), []
        if self.is_next("NN"):
            before.append((self.take("NN"), "nsubj"))
        if self.is_next("没有"):
            before.append((self.take("没有"), "neg"))
        verb = self.take("VV")
        for token, dep in [(mark, "mark"), *before]:
            self.link(token, verb, dep)
        return verb, "advcl"

    def noun_phrase(self) -> int:
        """[Quality 的] [verb object 的] [determiner] noun; returns the noun."""
        before = []
        if self.is_next("JJ"):
            quality = self.take("JJ")
            self.link(self.take("的"), quality, "mark")
            before.append((quality, "amod"))
        if self.is_next("VV"):
            verb = self.take("VV")
            self.link(self.take("NN"), verb, "dobj")
            self.link(self.take("的"), verb, "mark")
            before.append((verb, "acl"))
        if self.is_next("DT"):
            before.append((self.take("DT"), "det"))
        noun = self.take("NN")
        for token, dep in before:
            self.link(token, noun, dep)
        return noun
