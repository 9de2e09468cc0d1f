"""A first space file for a file of texts: what the file holds decides method, dev set and metric (`search init`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from search.space.clipped import COUNTED
from search.space.load import check_spaces, ready_folder
from search.space.space import Space
from trainables.contract.errors import DataError, EncoderError
from trainables.contract.registry import declared
from trainables.contract.trial import whole_file
from trainables.data.catalogue import beside_dev, find_file, is_path, set_name
from trainables.data.recognise import PAIRS, SCORED, SENTENCES, TRIPLETS, Part, Recognised, recognise, split
from trainables.data.retrieval import Retrieval, dev_metrics, is_retrieval, load_retrieval
from trainables.data.sets import load_pairs
from trainables.encoders.facts import available_facts

READY = {PAIRS: "retrieval", TRIPLETS: "retrieval", SCORED: "similarity", SENTENCES: "simcse_unsup"}
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
BATCHES = re.compile(r"batch_size: \{choice: \[(.*?)\]\}")
STEPS = 4  # batches of an epoch: with fewer, batch sizes differ by the number of steps only
MANY = 300  # queries or pairs of a dev set: with fewer, gains of a few percentage points stay undecided
EVALUATIONS = 4  # of a trial, for the pruner to pause it early; fewer where they would cost more than training
TRAINING = 3  # a training step costs that many times an evaluation of its texts: forward and backward


@dataclass(frozen=True)
class Begun:
    """file: the space; lines: what was recognised, written, and what to do next, for people."""

    file: Path
    lines: tuple[str, ...]


def space_from_data(
    data: str, dev: Sequence[str] = (), encoder: str = ENCODER, columns: Mapping[str, str] | None = None,
    out: Path | None = None, estimate: Callable[[Space], str] | None = None,
) -> Begun:  # fmt: skip
    """Write a space file that tunes an encoder on a file; without dev sets also that file's train, dev and test parts.

    Args:
        data: a file, a folder or a pattern of files. dev: files of scored pairs, retrieval sets; none = held out of the
            data. encoder: as in a space. columns: role -> column, where their names do not tell. out: the space file.
        estimate: returns the line on the cost of a search, for the file and for people.
    Raises: DataError for data that cannot be read or recognised, for too few rows, for existing files, and for what
        `search check` reports of the space: then its file stays, to be corrected.
    """
    found = recognise(find_file(data, "train").path, columns)
    stem = out.stem if out else re.sub(r"[\W_]*(train)?[\W_]*$", "", set_name(data), flags=re.IGNORECASE)
    name = re.sub(r"[^\w-]+", "_", stem, flags=re.ASCII).strip("_") or "own"
    file = out or Path(f"{name}.yaml")
    if file.exists():
        raise DataError(f"{file}: exists, and nothing is overwritten; choose another --out")
    if not dev and found.kind == SENTENCES:
        raise DataError(
            f"{found.path}: read as sentences ({', '.join(found.roles.values())}), which have no scores to select by; "
            "name a dev set with --dev: a file of scored pairs, or a folder in BEIR's layout; or, if it holds pairs, "
            "their columns with --column anchor=NAME --column positive=NAME"
        )
    lines, train, test = found.lines(), _named(data), ""
    if dev:
        parts: Mapping[str, Part] = {}
        sets = [_named(one) for one in dev]
        roles = {role: column for role, column in found.roles.items() if columns or role != column}
        test = _named(beside) if (beside := beside_dev(dev[0])) else ""
    else:
        parts = split(found, str(file.with_suffix("")))
        train, roles = str(parts["train"].path), {}
        sets, test = [_named(str(parts["dev"].path))], _named(str(parts["test"].path))
        lines += _parts_lines(parts, "pairs" if found.kind == SCORED else "queries")
    ready = READY[found.kind]
    ready_text = (ready_folder() / f"{ready}.yaml").read_text(encoding="utf-8")
    metrics = [dev_metrics(one)[0] for one in sets]
    selects = _flow({"name": metrics[0] if len(metrics) == 1 else f"mean({','.join(metrics)})"})
    data_of: dict[str, Any] = {"train": train, **({"columns": roles} if roles else {}), "dev": sets}
    data_of["language"] = found.language
    text = with_own_pooling(fitted(ready_text, data_of, found), encoder)
    values = {
        "name": name, "encoder": f"{_flow(encoder)}  # a hub id or a folder", "data": _flow(data_of),
        "metric": f"{selects}  # on the dev set; the test set is for `analysis test`",
    }  # fmt: skip
    lost = BATCHES.search(ready_text)[0] not in text  # type: ignore[index]
    fewer = ", without batch sizes too large for this data" if lost else ""
    head = f"# {found.kind} of {found.path}: a first search, with the ranges of the ready space {ready}{fewer}.\n"
    _write(file, head + with_values(text, values))
    (checked,) = check_spaces([str(file)])
    if checked.space is None:
        beside = "".join(f", {part.path}" for part in parts.values())
        hint = (
            f"hint: {file} was written: correct it, then run search check {file}; or delete it{beside} and start again"
        )
        raise DataError("\n".join([*checked.problems, hint]))
    cost = [estimate(checked.space)] if estimate is not None else []
    if cost:
        _write(file, f"{head}# {cost[0]}.\n" + with_values(text, values))
    notes = [f"  {note}" for note in checked.notes]
    return Begun(file, (*lines, f"wrote {file}", *notes, *cost, *_next(file, f"{name}-1", test)))


def _parts_lines(parts: Mapping[str, Part], unit: str) -> list[str]:
    lines = []
    for name, what in (("train", "rows"), ("dev", f"{unit}, which select"), ("test", f"{unit}, sealed")):
        part = parts[name]
        all_of = "" if part.passages >= part.of else f"of the {part.of:,} "
        among = f", among {part.passages:,} {all_of}passages" if part.passages else ""
        lines.append(f"  {part.path}: {part.size:,} {what}{among}")
    if (size := parts["dev"].size) < MANY:
        lines.append(f"  {size} {unit} give wide confidence intervals; --dev takes a larger dev set")
    return lines


def fitted(text: str, data: Mapping[str, Any], found: Recognised) -> str:
    """A ready space's text without the batch sizes that this training data is too small for, and with evaluations that
    are close enough for the pruner.

    Raises: DataError where it is too small for all of them.
    """
    from trainables.data.checks import corpus_size

    ready = yaml.safe_load(text)
    rows = corpus_size({"method": ready["method"], "data": data}, COUNTED) or len(found)
    train = {**declared(ready["method"]).values(None), **ready["train"]}
    length = min(rows * train["epochs"], train["max_examples"] or rows * train["epochs"])
    trained = TRAINING * length * sum(_letters(found.columns[role]) / len(found) for role in found.texts)
    evaluated = _dev_letters(data)
    most = max(1.0, trained // evaluated) if evaluated else math.inf
    evaluations = int(min(EVALUATIONS, most))
    if not evaluations <= length / train["eval_examples"] <= most:
        every = f"eval_examples: {max(length // evaluations, 1)}"
        text, given = re.subn(r"eval_examples: \d+", every, text)
        if not given:
            text = text.replace("\ntrain: {", f"\ntrain: {{{every}, ")

    def fewer(choice: re.Match[str]) -> str:
        sizes = [int(size) for size in choice[1].split(",")]
        if fitting := [size for size in sizes if size * STEPS <= rows]:
            return f"batch_size: {{choice: {fitting}}}" if len(fitting) > 1 else f"batch_size: {fitting[0]}"
        least = min(sizes) * STEPS
        raise DataError(f"{found.path}: expected at least {least} rows to train on, {STEPS} batches, got {rows}")

    return BATCHES.sub(fewer, text)


def _letters(texts: Sequence[str]) -> int:
    """Characters, of which the tokens of a text are about proportional."""
    return sum(map(len, texts))


def _dev_letters(data: Mapping[str, Any]) -> int:
    """Characters that an evaluation encodes; 0 where the dev sets are not files here, or cannot be read."""
    found: set[str] = set()
    for name in data["dev"]:
        if not is_path(name):
            return 0
        try:
            one = load_retrieval(name, "dev") if is_retrieval(name) else load_pairs(name, "dev", data["language"])
        except DataError:  # the check of the space reports it
            return 0
        found.update(*((one.queries, one.documents) if isinstance(one, Retrieval) else (one.first, one.second)))
    return _letters(list(found))


def with_own_pooling(text: str, encoder: str) -> str:
    """A space's text with the pooling of the encoder's own, where its files are here and it has one; else unchanged."""
    try:
        facts = available_facts(encoder)
    except EncoderError:  # the check of the space reports it
        facts = None
    if not facts or facts.own_pooling not in ("cls", "avg", "last") or re.search(r"\bpooling:", text):
        return text
    return text.replace("\nparams:\n", f"\nparams:\n  pooling: {facts.own_pooling}  # the encoder's own\n", 1)


def _write(file: Path, text: str) -> None:
    with whole_file(file) as target:
        target.write(text.encode())


def with_values(text: str, values: Mapping[str, str]) -> str:
    """A space file with other values of some top-level keys, new ones behind `data`, without the comment at its
    beginning."""
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    while blocks and (not blocks[0].strip() or blocks[0].startswith("#")):
        blocks.pop(0)
    keys = [block.partition(":")[0] for block in blocks]
    new = [key for key in values if key not in keys]
    order = [name for key in keys for name in ((key, *new) if key == "data" else (key,))]
    written = dict(zip(keys, blocks, strict=True)) | {key: f"{key}: {value}\n" for key, value in values.items()}
    return "".join(written[key] for key in order)


def _named(dev: str) -> str:
    """A file or folder, written so that a space does not take it for a named set."""
    return f"./{dev}" if Path(dev).is_dir() and "/" not in dev else dev


def _flow(value: object) -> str:
    """YAML's flow style; what is quoted is quoted as in JSON, which is YAML."""

    def text(one: object) -> str:
        if isinstance(one, Mapping):
            return "{" + ", ".join(f"{text(key)}: {text(inner)}" for key, inner in one.items()) + "}"
        if isinstance(one, list):
            return "[" + ", ".join(map(text, one)) + "]"
        return str(one) if re.fullmatch(r"[A-Za-z./][\w./()-]*", str(one)) else json.dumps(one, ensure_ascii=False)

    return text(value)


def _next(file: Path, study: str, test: str) -> list[str]:
    commands = {
        f"search check {file} --forecast": "a more exact cost, disk, memory",
        f"search run {file}": "",
        f"search confirm {study}": "the best and the defaults on fresh seeds",
        "analysis best": "the answer",
        **({f'analysis test --reason "final result" --set {test}': "once"} if test else {}),
        "analysis export": "a model for sentence-transformers",
    }
    width = max(map(len, commands))
    return ["Next", *(f"  {command:<{width}}  {why}".rstrip() for command, why in commands.items())]
