"""Checks against what is on this machine: data sets, encoder, tokenizer, corpus size. Nothing is downloaded."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from search.schema import BEST_PREFIX, UNTRAINED_PREFIX
from search.space.conditions import written_at
from search.space.nodes import Node, Problems, Where
from search.space.params import Param
from search.space.sections import LANGUAGE, evaluation_metrics
from search.space.space import Space
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.errors import DataError, EncoderError
from trainables.contract.registry import declared
from trainables.contract.trial import DEV_SUFFIX, HELD
from trainables.data.catalogue import (
    check_hub_name,
    data_dir,
    find_file,
    find_local,
    is_hub,
    is_path,
    set_name,
    unlisted,
)
from trainables.data.retrieval import NANO, dev_metrics, find_folder, is_retrieval
from trainables.data.tokens import PromptSizes, local_prompt_sizes
from trainables.encoders.facts import EncoderFacts, available_facts, unfit
from trainables.encoders.locate import available_folder, local_folder

SAMPLE = "sample_size"
COUNTED, NOTED = 1 << 28, 1 << 23  # bytes of a corpus up to which it is counted; for a note alone


def check_all(space: Space, root: Node, problems: Problems) -> None:
    """Every check of this module that needs a space."""
    for check in (check_taken_names, check_encoder, check_prompts, check_sample_sizes):
        check(space, root, problems)


def notes(space: Space) -> list[str]:
    """Notes on encoder, prompts and sample size before training, a line each."""
    sizes, wanted = _prompt_sizes(space), space.base.get(SAMPLE)
    found = encoder_notes(space) + (sizes.notes(_shortest(space)) if sizes else [])
    size = None if SAMPLE in space.params or wanted is None else _corpus_size(space, NOTED)
    if wanted is not None and size is not None and wanted > size:
        found.append(f"{SAMPLE}: {wanted} of {size} examples that the corpus has: all of them are trained on")
    return found


def check_names(root: Node, problems: Problems) -> None:
    """Report every name in data.train and data.dev that is neither a named set of the language nor a local one, every
    file in them that does not exist, and an encoder's folder that does not exist.
    """
    encoder = root.get("encoder")
    if encoder and isinstance(encoder.value, str) and not os.path.isfile(os.path.expanduser(encoder.value)):
        try:
            local_folder(encoder.value)
        except EncoderError as error:
            problems.add(encoder.where, str(error))
    if not (data := root.entries("data")):
        return
    try:
        data_dir()
    except DataError as error:
        problems.add(root.place("data"), str(error))
        return
    language = data["language"].value if "language" in data else "en"
    if not isinstance(language, str) or not LANGUAGE.fullmatch(language):
        return  # reported elsewhere
    for split, name, where in _named_sets(root):
        if message := _lost_set(name, split, language):
            problems.add(where, message)


def _named_sets(root: Node) -> Iterator[tuple[str, str, Where]]:
    """(split, name, where it is written) of every text in data.train (joined by `+`) and data.dev."""
    train, dev = root.get("data", "train"), root.get("data", "dev")
    found: list[tuple[str, str, Node]] = []
    if train is not None and isinstance(train.value, str) and not os.path.isfile(train.value):
        found += [("train", part.strip(), train) for part in train.value.split("+")]
    for item in [] if dev is None else dev.value if isinstance(dev.value, list) else [dev]:
        found += [("dev", item.value, item)] if isinstance(item.value, str) else []
    for split, name, node in found:
        if name.strip() and "\0" not in name:
            yield split, name, node.where.named(f"data.{split}")


def _lost_set(name: str, split: str, language: str) -> str | None:
    """Why a data set cannot be found."""
    dev = split == "dev"
    if dev and name in NANO:
        return None
    if not is_path(name):
        return None if find_local(name, language, split) else unlisted(name, language, split)
    try:
        if is_hub(name):
            check_hub_name(name, whole=dev and is_retrieval(name))
        elif dev and is_retrieval(name):
            find_folder(name)
        else:
            find_file(name, split)
    except DataError as error:
        return str(error)
    return None


def check_taken_names(space: Space, root: Node, problems: Problems) -> None:
    """Report evaluations that measure what a dev set, another one or the study itself measures under the same name.

    A stored study does without: what it has begun it may go on with.
    """
    where = root.place("data", "evaluations")
    taken = {metric: "data.dev" for dev_set in space.data.dev for metric in dev_metrics(dev_set)}
    outside = [(m, name) for name in space.data.evaluations or () for m in dict.fromkeys(evaluation_metrics([name]))]
    for metric, name in outside:
        if (other := taken.setdefault(metric, name)) != name:
            problems.add(where, f"{name}: {metric} is already measured by {other}")
    for metric, name in outside:
        of = metric.removeprefix(BEST_PREFIX).removeprefix(UNTRAINED_PREFIX)
        if of != metric and of in taken:
            problems.add(where, f"{name}: {metric} is what is tracked of {of}; rename it")
    for dev_set in space.data.dev if space.metric.holdout else ():
        if (metric := set_name(dev_set) + HELD + DEV_SUFFIX) in dict(outside):
            message = f"{metric} of the held-out part is already measured by data.evaluations"
            problems.add(root.place("metric", "holdout"), message)


def check_encoder(space: Space, root: Node, problems: Problems) -> None:
    """Report every hyperparameter that the encoder would ignore or could not use, at its own line."""
    try:
        facts = encoder_facts(space)
    except EncoderError as error:
        problems.add(root.place("encoder"), str(error).partition(": ")[2])
        return
    values: dict[str, list[Any]] = {name: [value] for name, value in space.base.items()}
    values |= {name: [*param.typical] for name, param in space.params.items()}
    for name, message in unfit(facts, space.encoder, values) if facts else ():
        if (where := written_at(root, name)) is None:  # the default: the encoder is what does not go with it
            where, message = root.place("encoder"), f"{name} is {values[name][0]} by default: {message}"
        problems.add(where, message)


def encoder_facts(space: Space) -> EncoderFacts | None:
    """What was measured of the encoder, None where its files are not on this machine.

    Raises: EncoderError if the encoder is of no use.
    """
    return available_facts(space.encoder) if declared(space.method).encoders == TRANSFORMER else None


def encoder_notes(space: Space) -> list[str]:
    """Notes on the encoder before training, a line each; none where its files are not on this machine."""
    try:
        facts = encoder_facts(space)
    except EncoderError:
        return []  # reported where it matters, by the check of the space or by the first trial
    return facts.notes() if facts else []


def check_prompts(space: Space, root: Node, problems: Problems) -> None:
    """Report every prompt that is all that a trial would see of its texts."""
    sizes = _prompt_sizes(space)
    for key, message in sizes.problems(_shortest(space)) if sizes else ():
        problems.add(root.place(*key.split(".")), message)


def _prompt_sizes(space: Space) -> PromptSizes | None:
    """Lengths of the prompts, None where the encoder's tokenizer is not on this machine."""
    if not space.data.prompts or declared(space.method).encoders != TRANSFORMER:
        return None
    folder = available_folder(space.encoder)
    return None if folder is None else _counted(folder, tuple(space.data.prompts.items()))


@cache
def _counted(folder: Path, prompts: tuple[tuple[str, str], ...]) -> PromptSizes | None:
    return local_prompt_sizes(folder, dict(prompts))


def _shortest(space: Space) -> int:
    searched = space.params.get("max_length")
    return int(min(searched.typical) if searched else space.base["max_length"])


def check_sample_sizes(space: Space, root: Node, problems: Problems) -> None:
    """Report a search over sample sizes of which several are the whole corpus, where that is on this machine."""
    if (param := space.params.get(SAMPLE)) is None or (size := _corpus_size(space, COUNTED)) is None:
        return
    if whole := _whole(space, param, size):
        message = f"expected at most {size}, the corpus has {size} examples: {whole} are the same run"
        problems.add(written_at(root, SAMPLE) or root.where, message)


def _whole(space: Space, param: Param, size: int) -> str:
    """The values that take the whole corpus in words, "" if at most one does."""
    if param.values is None:  # a range may have more values than can be listed
        low, high = map(int, param.bounds)
        step = int(param.step or 1)
        first = low + step * max(0, math.ceil((size - low) / step))
        return f"{first} to {high}" if first < high else ""
    values = [value for value in param.values if _is_whole(value, size)]
    if param.listed:
        rows = [row for row in space.rows if SAMPLE in row and _is_whole(row[SAMPLE], size)]
        rest = [repr(sorted((name, value) for name, value in row.items() if name != SAMPLE)) for row in rows]
        times = Counter(rest)
        values = [row[SAMPLE] for row, others in zip(rows, rest, strict=True) if times[others] > 1]
    return ", ".join("null" if v is None else str(v) for v in values) if len(values) > 1 else ""


def _is_whole(value: Any, size: int) -> bool:
    return value is None or value >= size


def _corpus_size(space: Space, most: int) -> int | None:
    from trainables.data.checks import corpus_size

    if declared(space.method).scripted:
        return None
    return corpus_size({"method": space.method, "data": asdict(space.data)}, most)
