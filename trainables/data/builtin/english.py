"""English sentences of frames, and the dependency parse of such a sentence (spaCy's English labels)."""

from __future__ import annotations

import re
from functools import cache
from random import Random

from trainables.data.builtin.frames import Frame
from trainables.data.builtin.lexicon import Concept, concepts, pick
from trainables.data.parses import Token

_FORMS = ("VB", "VBZ", "VBG", "VBD", "VBN")
# Auxiliaries of a verb group: what precedes the verb, and the verb's form. The negated group puts "not" behind.
_ACTIVE = (("", "VBZ"), ("", "VBD"), ("is", "VBG"), ("was", "VBG"), ("has", "VBN"), ("will", "VB"))
_ACTIVE_NOT = (("does", "VB"), ("did", "VB"), ("is", "VBG"), ("was", "VBG"), ("has", "VBN"), ("will", "VB"))
_ACTIVE_PAST, _ACTIVE_PAST_NOT = (("", "VBD"), ("was", "VBG")), (("did", "VB"), ("was", "VBG"))
_PASSIVE = (("is", "VBN"), ("was", "VBN"))
_FUNCTION_WORDS = {
    "the": ("the", "DET", "DT"), "a": ("a", "DET", "DT"), "an": ("an", "DET", "DT"),
    "is": ("be", "AUX", "VBZ"), "was": ("be", "AUX", "VBD"), "has": ("have", "AUX", "VBZ"),
    "does": ("do", "AUX", "VBZ"), "did": ("do", "AUX", "VBD"), "will": ("will", "AUX", "MD"),
    "not": ("not", "PART", "RB"), "n't": ("n't", "PART", "RB"),
    "who": ("who", "PRON", "WP"), "it": ("it", "PRON", "PRP"),
    **{word: (word, "ADP", "IN") for word in ("in", "on", "at", "by", "with", "from")},
    **{word: (word, "SCONJ", "IN") for word in ("because", "as", "since", "before", "until")},
    "after": ("after", "SCONJ", "IN"), "when": ("when", "SCONJ", "WRB"),
    "abroad": ("abroad", "ADV", "RB"), "overseas": ("overseas", "ADV", "RB"),
    "last": ("last", "ADJ", "JJ"), "previous": ("previous", "ADJ", "JJ"),
    "glasses": ("glass", "NOUN", "NNS"), "spectacles": ("spectacle", "NOUN", "NNS"),
    "whiskers": ("whisker", "NOUN", "NNS"), "guests": ("guest", "NOUN", "NNS"), "visitors": ("visitor", "NOUN", "NNS"),
    ",": (",", "PUNCT", ","), ".": (".", "PUNCT", "."),
}  # fmt: skip
_CLAUSE_VERBS = {  # verbs of descriptions and reasons, in the forms lexicon.txt uses
    "wears": "wear", "grows": "grow", "comes": "come", "holds": "hold", "carries": "carry", "rained": "rain",
    "poured": "pour", "snowed": "snow", "fell": "fall", "ended": "end", "finished": "finish", "arrived": "arrive",
    "appeared": "appear", "dropped": "drop", "declined": "decline", "vanished": "vanish", "disappeared": "disappear",
}  # fmt: skip


def write(frame: Frame, rng: Random) -> str:
    """One of the many English sentences with the meaning of `frame`."""
    past = frame.time is not None and frame.time.family == "past"
    if frame.action is None:
        assert frame.quality is not None
        core = [*_subject(frame, rng, with_quality=False), *_state(frame, past, rng)]
    elif frame.object is not None and rng.random() < 0.25:
        core = _passive(frame, past, rng)
    else:
        core = _active(frame, past, rng)
    return _spell(_with_circumstances(frame, core, rng))


def _active(frame: Frame, past: bool, rng: Random) -> list[str]:
    assert frame.action is not None
    if past:
        auxiliary, form = pick(rng, _ACTIVE_PAST_NOT if frame.negated else _ACTIVE_PAST)
    else:
        auxiliary, form = pick(rng, _ACTIVE_NOT if frame.negated else _ACTIVE)
    group = [auxiliary] if auxiliary else []
    group += _negation(frame, auxiliary, rng)
    words = [*_subject(frame, rng), *group, _inflect(pick(rng, frame.action.english))[form]]
    return words if frame.object is None else [*words, *_noun_phrase(frame.object, None, rng)]


def _passive(frame: Frame, past: bool, rng: Random) -> list[str]:
    assert frame.action is not None
    assert frame.object is not None
    auxiliary, form = _PASSIVE[1] if past else pick(rng, _PASSIVE)
    verb = _inflect(pick(rng, frame.action.english))[form]
    patient = _noun_phrase(frame.object, None, rng)
    return [*patient, auxiliary, *_negation(frame, auxiliary, rng), verb, "by", *_subject(frame, rng)]


def _state(frame: Frame, past: bool, rng: Random) -> list[str]:
    assert frame.quality is not None
    auxiliary = "was" if past else pick(rng, ("is", "was"))
    return [auxiliary, *_negation(frame, auxiliary, rng), pick(rng, frame.quality.english)]


def _negation(frame: Frame, auxiliary: str, rng: Random) -> list[str]:
    if not frame.negated:
        return []
    return ["not"] if auxiliary == "will" else [pick(rng, ("not", "n't"))]


def _subject(frame: Frame, rng: Random, with_quality: bool = True) -> list[str]:
    words = _noun_phrase(frame.agent, frame.quality if with_quality else None, rng)
    return words + pick(rng, frame.description.english).split() if frame.description else words


def _noun_phrase(noun: Concept, quality: Concept | None, rng: Random) -> list[str]:
    words = [pick(rng, noun.english)]
    if quality is not None:
        words = [pick(rng, quality.english), *words]
    if rng.random() < 0.7:
        return ["the", *words]
    return ["an" if words[0][0] in "aeiou" else "a", *words]


def _with_circumstances(frame: Frame, core: list[str], rng: Random) -> list[str]:
    """Place, time and reason in front of or behind the core; at most one of them in front, set off by a comma."""
    phrases = [pick(rng, c.english).split() for c in (frame.place, frame.time) if c is not None]
    if len(phrases) == 2 and rng.random() < 0.5:
        phrases.reverse()
    if frame.reason is not None:
        phrases.append(pick(rng, frame.reason.english).split())
    front: list[str] = []
    if phrases and rng.random() < 0.35:
        front = [*phrases.pop(int(rng.random() * len(phrases))), ","]
    return front + core + [word for phrase in phrases for word in phrase] + ["."]


def _spell(words: list[str]) -> str:
    """Words joined as they are printed: marks and n't without a blank, the first letter large."""
    text = re.sub(r" (?=[.,]|n't)", "", " ".join(words))
    return text[0].upper() + text[1:]


@cache
def _inflect(verb: str) -> dict[str, str]:
    """Forms by tag of a verb as lexicon.txt writes it: base, or base/past/participle[/ing]."""
    base, *irregular = verb.split("/")
    stem = base.removesuffix("e")
    changed_y = base[:-1] + "i" if base.endswith("y") and base[-2] not in "aeiou" else None
    past = changed_y + "ed" if changed_y else stem + "ed"
    third = changed_y + "es" if changed_y else base + ("es" if re.search(r"(s|x|z|ch|sh|o)$", base) else "s")
    return {
        "VB": base,
        "VBZ": third,
        "VBD": irregular[0] if irregular else past,
        "VBN": irregular[1] if irregular else past,
        "VBG": irregular[2] if len(irregular) > 2 else stem + "ing",
    }


@cache
def _lexicon() -> dict[str, tuple[str, str, str]]:
    """Lower-cased word -> (lemma, coarse tag, fine tag); verbs with the first of their possible fine tags."""
    known = {}
    for concept in concepts():
        for phrase in concept.english:
            if concept.kind == "action":
                forms = _inflect(phrase)
                known.update({forms[tag]: (forms["VB"], "VERB", tag) for tag in reversed(_FORMS)})
            else:
                coarse, fine = ("ADJ", "JJ") if concept.kind == "quality" else ("NOUN", "NN")
                known.update({word.lower(): (word.lower(), coarse, fine) for word in phrase.split()})
    for day in ("monday", "mondays", "sunday"):
        known[day] = (day.removesuffix("s").capitalize(), "PROPN", "NNPS" if day.endswith("ys") else "NNP")
    for word, lemma in _CLAUSE_VERBS.items():
        known[word] = (lemma, "VERB", "VBZ" if word.endswith("s") else "VBD")
    return known | _FUNCTION_WORDS


@cache
def concept_words() -> dict[str, tuple[Concept, ...]]:
    """Lower-cased content word -> the concepts it stands for (all inflected forms of a verb count)."""
    found: dict[str, dict[Concept, None]] = {}
    for concept in concepts():
        for phrase in concept.english:
            forms = _inflect(phrase).values() if concept.kind == "action" else phrase.lower().split()
            for word in forms:
                if word not in _FUNCTION_WORDS:
                    found.setdefault(word, {})[concept] = None
    return {word: tuple(of) for word, of in found.items()}


def function_words() -> list[str]:
    """Words without a concept of their own, marks excluded."""
    return [word for word in _FUNCTION_WORDS if word[0].isalpha()]


def parse(sentence: str) -> list[Token]:
    """Dependency parse of a sentence that `write` made.

    Raises: ValueError naming the first word or place that the builtin grammar does not know.
    """
    words = re.findall(r"\w+(?=n't\b)|n't|\w+|[^\w\s]", sentence)
    return _Reader(words, sentence).read()


class _Reader:
    """One left-to-right pass over the words; each method reads one phrase from `self.at` on and returns its head."""

    def __init__(self, words: list[str], sentence: str) -> None:
        self.words, self.sentence, self.at = words, sentence, 0
        lexicon = _lexicon()
        if unknown := [word for word in words if word.lower() not in lexicon]:
            raise ValueError(f"expected words of the builtin English corpus, got {unknown[0]!r} in {sentence!r}")
        self.entries = [lexicon[word.lower()] for word in words]
        self.heads, self.deps = [-1] * len(words), [""] * len(words)

    def read(self) -> list[Token]:
        root = self.clause()
        self.link(root, root, "ROOT")
        if self.at != len(self.words) or "" in self.deps:
            raise ValueError(f"expected a sentence of the builtin English grammar, got {self.sentence!r}")
        return [
            Token(word, lemma, pos, tag, dep, head)
            for word, (lemma, pos, tag), dep, head in zip(self.words, self.entries, self.deps, self.heads, strict=True)
        ]

    def is_next(self, *tags: str) -> bool:
        """Whether the next word has one of these coarse tags, or is one of these words."""
        if self.at == len(self.words):
            return False
        return self.entries[self.at][1] in tags or self.words[self.at].lower() in tags

    def take(self, *tags: str) -> int:
        if not self.is_next(*tags):
            got = self.words[self.at] if self.at < len(self.words) else "the end"
            raise ValueError(f"expected {' or '.join(tags)}, got {got!r} in {self.sentence!r}")
        self.at += 1
        return self.at - 1

    def link(self, token: int, head: int, dep: str) -> None:
        self.heads[token], self.deps[token] = head, dep

    def clause(self) -> int:
        """[circumstance ,] subject predicate [object] circumstances [.]; returns the predicate."""
        dependents: list[tuple[int, str]] = []
        if self.starts_circumstance():
            dependents += [self.circumstance(), (self.take(","), "punct")]
        subject = self.take("it") if self.is_next("it") else self.person()
        verb, passive = self.predicate()
        dependents.append((subject, "nsubjpass" if passive else "nsubj"))
        if passive:
            by = self.take("by")
            self.link(self.person(), by, "pobj")
            dependents.append((by, "agent"))
        elif self.is_next("DET") and not self.starts_circumstance():
            dependents.append((self.noun_phrase(), "dobj"))
        while self.starts_circumstance():
            dependents.append(self.circumstance())
        if self.is_next("."):
            dependents.append((self.take("."), "punct"))
        for token, dep in dependents:
            self.link(token, verb, dep)
        return verb

    def predicate(self) -> tuple[int, bool]:
        """Auxiliaries, negation and verb, or be and adjective; returns the head and whether it is passive."""
        before = []
        while self.is_next("AUX", "PART"):
            before.append(self.take("AUX", "PART"))
        if self.is_next("ADJ"):  # be is the head, its adjective a complement
            verb = before.pop(0)
            self.link(self.take("ADJ"), verb, "acomp")
        else:
            verb = self.take("VERB")
            self.settle_form(verb, self.entries[before[0]][0] if before else "")
        passive = bool(before) and self.entries[before[0]][0] == "be" and self.entries[verb][2] == "VBN"
        for token in before:
            dep = "neg" if self.entries[token][1] == "PART" else "auxpass" if passive else "aux"
            self.link(token, verb, dep)
        return verb, passive

    def settle_form(self, verb: int, auxiliary: str) -> None:
        """Fine tag of a verb by its auxiliary's lemma: "painted" is VBD alone, VBN behind has and was."""
        lemma, coarse, tag = self.entries[verb]
        if auxiliary in ("do", "will"):
            tag = "VB"
        elif auxiliary == "have":
            tag = "VBN"
        elif auxiliary == "be":
            tag = "VBG" if self.words[verb].endswith("ing") else "VBN"
        self.entries[verb] = (lemma, coarse, tag)

    def person(self) -> int:
        """Noun phrase [with ... | from ... | who ...]; returns the noun."""
        noun = self.noun_phrase()
        if self.is_next("with", "from"):
            self.link(self.preposition(), noun, "prep")
        elif self.is_next("who"):
            self.relative_clause(noun)
        return noun

    def relative_clause(self, noun: int) -> None:
        subject, verb = self.take("who"), self.take("VERB")
        self.link(subject, verb, "nsubj")
        self.link(verb, noun, "relcl")
        if self.is_next("from"):
            self.link(self.preposition(), verb, "prep")
        else:
            self.link(self.noun_phrase(), verb, "dobj")

    def starts_circumstance(self) -> bool:
        """Whether a place, time or reason follows; "the previous day" begins as an object does."""
        following = [word.lower() for word in self.words[self.at : self.at + 3]]
        return (self.is_next("ADP", "SCONJ") and not self.is_next("by", "with", "from")) or following[:1] in (
            ["last"],
            ["yesterday"],
        ) or following[:2] == ["the", "previous"]  # fmt: skip

    def circumstance(self) -> tuple[int, str]:
        """A place, time or reason: its head and that head's label."""
        if self.is_next("SCONJ"):
            mark = self.take("SCONJ")
            verb = self.clause()
            self.link(mark, verb, "advmod" if self.words[mark].lower() == "when" else "mark")
            return verb, "advcl"
        if self.is_next("ADP"):
            return self.preposition(), "prep"
        return self.noun_phrase(), "npadvmod"

    def preposition(self) -> int:
        """Preposition and what it governs; returns the preposition."""
        preposition = self.take("ADP")
        if self.is_next("ADV"):
            self.link(self.take("ADV"), preposition, "pcomp")
        else:
            self.link(self.noun_phrase(), preposition, "pobj")
        return preposition

    def noun_phrase(self) -> int:
        """[Determiner] adjectives noun; returns the noun."""
        before = []
        while self.is_next("DET", "ADJ"):
            before.append(self.take("DET", "ADJ"))
        noun = self.take("NOUN", "PROPN")
        for token in before:
            self.link(token, noun, "det" if self.entries[token][1] == "DET" else "amod")
        return noun
