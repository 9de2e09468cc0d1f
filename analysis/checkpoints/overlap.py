"""What test data have in common with what a study trained or selected on: pairs, or texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from search import schema
from trainables.contract.errors import DataError
from trainables.contract.trial import at_width, metric_parts
from trainables.data.catalogue import set_name, train_parts
from trainables.data.recognise import normalised
from trainables.data.retrieval import is_retrieval, load_retrieval
from trainables.data.sets import Pairs, load_corpus, load_pairs


def seen_sets(data: Mapping[str, Any], metric: str) -> tuple[list[tuple[str, Pairs]], dict[str, str]]:
    """Pair sets that selected (those of the dev sets in the metric) or trained, for `overlaps`; and why dev sets are
    not among them that cannot be read any more (name -> reason)."""
    language, columns = str(data.get("language", "en")), data.get("columns")
    selecting = {at_width(part)[0].removesuffix(schema.DEV_SUFFIX) for part in metric_parts(metric)}
    seen, unread = [], {}
    for name in data["dev"]:
        if not is_retrieval(name) and set_name(name) in selecting:
            try:
                seen.append(("dev", load_pairs(name, "dev", language, columns)))
            except DataError as fault:
                unread[name] = str(fault)
    for name in train_parts(str(data["train"])):
        try:
            seen.append(("train", load_pairs(name, "train", language, columns)))
        except DataError:  # a corpus without pairs, or without scores
            continue
    return seen, unread


def overlaps(tests: Sequence[Pairs], seen: Sequence[tuple[str, Pairs]]) -> list[str]:
    """A line for each test set and other set that have pairs in common, in the order of the test sets.

    A pair is the same pair whatever the order of its sentences, their case and their white space; its score does not
    matter. Every row of the test set counts, repeated ones too.

    Args: seen: ("train" or "dev", pair set).
    """
    known = [(part, pairs.name, {*map(_key, pairs.first, pairs.second)}) for part, pairs in seen]
    found = []
    for test in tests:
        keys = list(map(_key, test.first, test.second))
        for part, name, pairs in known:
            if count := sum(key in pairs for key in keys):
                found.append(
                    f"{test.name} test: {count:,} of {len(keys):,} pairs ({100 * count / len(keys):.1f} %) also stand "
                    f"in {name} {part}, which {'selected' if part == 'dev' else 'trained'}; its score is not one on "
                    "unseen data"
                )
    return found


def shared_texts(name: str, texts: Iterable[str], data: Mapping[str, Any], what: str = "texts") -> list[str]:
    """A line for each train and dev set of a study in which some of these texts stand.

    Args: name: of whose texts they are. what: they are called. data: the study's, as a trial's specification has them.
    """
    theirs = set(map(normalised, texts)) - {""}
    language, columns = str(data.get("language", "en")), data.get("columns")
    lines = []
    for role, given in used_sets(data):
        seen = set[str]()
        with contextlib.suppress(DataError):  # not on this machine any more: nothing can be compared
            seen = theirs.intersection(map(normalised, _texts(role, given, language, columns)))
        if seen:
            share = 100 * len(seen) / len(theirs)
            lines.append(
                f"{name}: {len(seen):,} of its {len(theirs):,} {what} ({share:.1f} %) also stand in {given} of "
                f"data.{role}; its score is not one on unseen data"
            )
    return lines


def used_sets(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """("train" or "dev", name) of every set that a study trained or selected on."""
    return [("train", part) for part in train_parts(str(data["train"]))] + [("dev", d) for d in data["dev"]]


def _texts(role: str, name: str, language: str, columns: Mapping[str, str] | None) -> Iterable[str]:
    if role == "train":
        for column in load_corpus(name, language, "sentences", columns).columns.values():
            yield from column
    elif is_retrieval(name):
        found = load_retrieval(name)
        yield from found.queries
        yield from found.documents
    else:
        pairs = load_pairs(name, "dev", language, columns)
        yield from pairs.first
        yield from pairs.second


def _key(first: str, second: str) -> tuple[str, ...]:
    return tuple(sorted((normalised(first), normalised(second))))
