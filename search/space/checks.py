"""Checks of a space: conditions can hold, grids can be listed, values are read and go together.

And those against what is on this machine: data sets, encoder, tokenizer, corpus size. Nothing is downloaded.
"""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from search.schema import BEST_PREFIX, UNTRAINED_PREFIX
from search.space.data_sets import set_nodes
from search.space.encoder_key import code_notes
from search.space.nodes import Node, Problems, Where
from search.space.params import Param, stored
from search.space.sections import LANGUAGE, Search, evaluation_metrics, mistake
from search.space.space import Space, evaluation_notes
from trainables.contract.config import Hyperparameter
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.errors import DataError, EncoderError, did_you_mean, first_line
from trainables.contract.registry import declared
from trainables.contract.trial import DEV_SUFFIX, HELD, at_width, metric_parts
from trainables.data.catalogue import (
    check_hub_name,
    data_dir,
    find_file,
    find_local,
    is_hub,
    is_path,
    set_name,
    train_parts,
    unlisted,
)
from trainables.data.retrieval import BUILTIN_RETRIEVAL, NANO, dev_metrics, find_folder, is_beir, is_retrieval
from trainables.data.tokens import PromptSizes, local_prompt_sizes
from trainables.encoders.facts import EncoderFacts, available_facts, unfit
from trainables.encoders.locate import available_folder, folder_fault, local_folder

MOST_POINTS = 100_000  # of a grid: more is a mistake, since nothing could run them
_MOST_CHECKED = 400  # combinations tried for settings that do not go together
_NUMBER = re.compile(r"\d[\d.e-]*")


def written_at(root: Node, name: str) -> Where | None:
    """Where a document gives a hyperparameter, None if it does not."""
    for section in ("params", "train"):
        if (node := root.get(section, name)) is not None:
            return node.where
    points = root.get("points")
    rows = points.value if points is not None and isinstance(points.value, list) else ()
    return root.place("points", name) if any(row.get(name) for row in rows) else None


def check_conditions(
    params: Mapping[str, Param], base: Mapping[str, Any], known: Mapping[str, Hyperparameter], unsure: Collection[str],
    root: Node, problems: Problems,
) -> dict[str, Param]:  # fmt: skip
    """The parameters with checked conditions, each after those it depends on (otherwise in the order given).

    A condition is dead when the parameter it names never takes one of its values, and is reported; those on parameters
    that are themselves mistaken (`unsure`) are not judged.
    """
    checked = {}
    for name, param in params.items():
        when = {}
        for other, values in param.when.items():
            where = root.place("params", name, "when", other)
            if other not in known:
                problems.add(where, "unknown" + did_you_mean(other, known))
            elif message := next((m for v in values if (m := mistake(known[other], v))), None):
                problems.add(where, message)
            else:
                when[other] = tuple(stored(known[other], v) for v in values)
                if other not in unsure and (message := _never_true(params.get(other), base.get(other), when[other])):
                    problems.add(where, message)
        checked[name] = replace(param, when=when)
    return _ordered(checked, root, problems)


def _never_true(other: Param | None, fixed: Any, values: tuple[Any, ...]) -> str | None:
    if not values:
        return "never true: it names no value"
    if other is None:
        return None if fixed in values else f"never true: its value is fixed at {fixed!r}"
    if unreachable := [v for v in values if not other.legal(v)]:
        return f"never takes {', '.join(map(repr, unreachable))} in this space"
    if other.count() is None:
        return "never true: a range without `step` never takes an exact value; give it a `step`"
    return None


def _ordered(params: dict[str, Param], root: Node, problems: Problems) -> dict[str, Param]:
    ordered: dict[str, Param] = {}
    left = dict(params)
    while left:
        ready = [n for n, p in left.items() if not any(o in left for o in p.when)]
        if not ready:
            for name in left:
                problems.add(root.place("params", name, "when"), f"circular conditions: {', '.join(left)}")
            return ordered | left
        # One at a time: a parameter moves back only as far as its conditions need.
        ordered[ready[0]] = left.pop(ready[0])
    return ordered


def check_search(search: Search, params: Mapping[str, Param], root: Node, problems: Problems) -> None:
    """That the sampler fits what is searched."""
    if search.sampler == "grid":
        if search.start:
            problems.add(root.place("search", "start"), "a grid runs its own points only")
        for name in (name for name, param in params.items() if param.count() is None):
            problems.add(root.place("params", name), "sampler grid needs grid, choice, or a range with step")
        return
    if not params:
        message = f"nothing is searched; sampler {search.sampler} needs a parameter with values"
        problems.add(root.place("params"), message)
    if any(param.listed for param in params.values()):
        problems.add(root.place("points"), f"listed points need sampler grid, got {search.sampler}")


def check_size(space: Space, root: Node, problems: Problems) -> None:
    """That a grid is not too large, nor cut short."""
    count = space.cardinality() if space.is_grid else None
    if count is None:
        return
    if count > MOST_POINTS:
        problems.add(root.place("params"), f"a grid of {count:,} points; at most {MOST_POINTS:,} can be run")
    elif space.search.trials is not None and space.search.trials < count:
        message = f"a grid runs its exact product of {count} points, got {space.search.trials}"
        problems.add(root.place("search", "trials"), message)


def check_combinations(space: Space, root: Node, problems: Problems, draws: bool) -> None:
    """That no combination of values is forbidden by the method (a head that the pooling lacks, ...).

    draws: also of points drawn of the whole space. A stored study does without: what it has begun it may go on with.
    """
    config, base = space.declaration.config, space.base
    seen = set()
    for point in itertools.chain(combinations(space), _draws(space) if draws else ()):
        try:
            found = [(name, message) for name, message in config.conflicts({**base, **point})]
        except Exception as error:  # of a plugin
            got = f"got {type(error).__name__}: {first_line(error)}"
            message = f"{config.__name__}.conflicts: expected [(hyperparameter, message), ...], {got}"
            problems.add(root.place("method"), message)
            return
        for name, message in found:
            # Each value of a list is reported; a range has too many, whose messages differ in their numbers only.
            listed = name in space.params and space.params[name].values is not None
            fault = (name, repr(point.get(name)) if listed else "", _NUMBER.sub("", message))
            if fault not in seen:
                seen.add(fault)
                problems.add(written_at(root, name) or root.where.to("params", name), message)


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """All points over typical values when they are few, else every pair of parameters varied around a first point."""
    small = replace(space, params={n: p if p.listed else replace(p, values=p.typical) for n, p in space.params.items()})
    count = small.cardinality()
    if count is not None and count <= _MOST_CHECKED:
        yield from small.points()
        return
    lone = {name: p if p.listed else replace(p, values=p.typical[:1]) for name, p in small.params.items()}
    for pair in itertools.combinations([n for n, p in lone.items() if not p.listed], 2):
        varied = replace(small, params=lone | {name: small.params[name] for name in pair})
        yield from itertools.islice(varied.points(), _MOST_CHECKED)


def _draws(space: Space) -> Iterator[dict[str, Any]]:
    """Points drawn evenly, the same ones every time; half the values that conditions name are drawn for their sake."""
    draw = random.Random(0)
    named: dict[str, list[Any]] = {}
    for param in space.params.values():
        for other, values in param.when.items():
            named.setdefault(other, []).extend(values)
    for _ in range(_MOST_CHECKED):
        point = dict(draw.choice(space.rows or ({},)))
        for name, param in space.params.items():
            if not param.listed and space.active(name, point):
                at_named = name in named and draw.random() < 0.5
                point[name] = draw.choice(named[name]) if at_named else param.drawn(draw)
        yield point


def notes(space: Space) -> list[str]:
    """Notes on encoder and prompts before training, a line each."""
    sizes = _prompt_sizes(space)
    return encoder_notes(space) + evaluation_notes(space) + (sizes.notes(_shortest(space)) if sizes else [])


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
        if message := _set_fault(name, split, language):
            problems.add(where, message)


def _named_sets(root: Node) -> Iterator[tuple[str, str, Where]]:
    """(split, name, where it is written) of every text in data.train (joined by `+`) and data.dev."""
    found: list[tuple[str, str, Node]] = []
    for split in ("train", "dev"):
        for item, _ in set_nodes(root.get("data", split)):
            if isinstance(item.value, str):
                parts = train_parts(item.value) if split == "train" else [item.value]
                found += [(split, part, item) for part in parts]
    for split, name, node in found:
        if name.strip() and "\0" not in name:
            yield split, name, node.where.named(f"data.{split}")


def _set_fault(name: str, split: str, language: str) -> str | None:
    """Why a data set cannot be found."""
    dev = split == "dev"
    if dev and (name in NANO or name in BUILTIN_RETRIEVAL.values() or is_beir(Path(name))):
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
        if (folder := _encoder_folder(space)) and (fault := folder_fault(folder)):
            raise EncoderError(f"encoder: {space.encoder}: {fault}")
        facts = encoder_facts(space)
    except EncoderError as error:
        problems.add(root.place("encoder"), str(error).partition(": ")[2])
        return
    try:
        miner = (space.data.mine or {}).get("encoder")
        available_facts(miner) if miner else None
    except EncoderError as error:
        problems.add(root.place("data", "mine", "encoder"), str(error).partition(": ")[2])
    for guide in guides(space):
        try:
            local_folder(guide)
            available_facts(guide)
        except EncoderError as error:
            problems.add(written_at(root, "guide") or root.where, str(error))
    values: dict[str, list[Any]] = {name: [value] for name, value in space.base.items()}
    values |= {name: [*param.typical] for name, param in space.params.items()}
    for name, message in unfit(facts, space.encoder, values) if facts else ():
        if (where := written_at(root, name)) is None:  # the default: the encoder is what does not go with it
            where, message = root.place("encoder"), f"{name} is {values[name][0]} by default: {message}"
        problems.add(where, message)
    for width in (at_width(part)[1] for part in metric_parts(space.metric.name)):
        if facts and width and width > (facts.width or width):
            message = f"@{width}: expected at most {facts.width}, the width of {space.encoder}"
            problems.add(root.place("metric", "name"), message)


def guides(space: Space) -> list[str]:
    """The frozen encoders that its trials may read (`guide`)."""
    searched = space.params.get("guide")
    return [name for name in (searched.typical if searched else [space.base.get("guide")]) if name]


def _encoder_folder(space: Space) -> Path | None:
    """A local folder that is the encoder, as the method reads it."""
    if declared(space.method).encoders != TRANSFORMER or space.encoder.startswith("builtin:"):
        return None
    return local_folder(space.encoder)


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
        facts = None  # reported where it matters, by the check of the space or by the first trial
    searched = space.params.get("pooling")
    pooling = searched.typical if searched else (space.base.get("pooling"),)
    return code_notes(space.encoder) + (facts.notes([str(one) for one in pooling if one]) if facts else [])


def check_prompts(space: Space, root: Node, problems: Problems) -> None:
    """Report every prompt that is all that a trial would see of its texts, and an exclusion of prompts without any."""
    own = space.params.get("include_prompt")
    values = own.typical if own else (space.base.get("include_prompt"),)
    if False in values and declared(space.method).prompts and not space.data.prompts:
        problems.add(written_at(root, "include_prompt") or root.where, "false needs data.prompts, got none")
    sizes = _prompt_sizes(space)
    for key, message in sizes.problems(_shortest(space)) if sizes else ():
        problems.add(root.place(*key.split(".")), message)


def _prompt_sizes(space: Space) -> PromptSizes | None:
    """Lengths of the prompts, None where the encoder's tokenizer is not on this machine."""
    if not space.data.prompts or declared(space.method).encoders != TRANSFORMER:
        return None
    folder = available_folder(space.encoder)
    return None if folder is None else local_prompt_sizes(folder, tuple(space.data.prompts.items()))


def _shortest(space: Space) -> int:
    searched = space.params.get("max_length")
    return int(min(searched.typical) if searched else space.base["max_length"])
