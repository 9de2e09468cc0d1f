"""A first space file for a file of texts: what the file holds decides method, dev set and metric (`search init`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search.space.load import check_spaces, ready_folder
from trainables.contract.errors import DataError
from trainables.contract.trial import whole_file
from trainables.data.catalogue import find_file, set_name
from trainables.data.recognise import PAIRS, SCORED, SENTENCES, TRIPLETS, recognise, split
from trainables.data.retrieval import dev_metrics

READY = {PAIRS: "retrieval", TRIPLETS: "retrieval", SCORED: "similarity", SENTENCES: "simcse_unsup"}
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Begun:
    """file: the space; lines: what was recognised, written, and what to do next, for people."""

    file: Path
    lines: tuple[str, ...]


def space_from_data(
    data: str, dev: Sequence[str] = (), encoder: str = ENCODER, columns: Mapping[str, str] | None = None,
    out: Path | None = None,
) -> Begun:  # fmt: skip
    """Write a space file that tunes an encoder on a file; without dev sets also that file's train, dev and test parts.

    Args:
        data: a file, a folder or a pattern of files. dev: files of scored pairs, retrieval sets; none = held out of the
            data. encoder: as in a space. columns: role -> column, where their names do not tell. out: the space file.
    Raises: DataError for data that cannot be read or recognised, for existing files, and for what `search check`
        says of the space: then its file stays, to be corrected.
    """
    found = recognise(find_file(data, "train").path, columns)
    stem = out.stem if out else re.sub(r"[\W_]*(train)?[\W_]*$", "", set_name(data), flags=re.IGNORECASE)
    name = re.sub(r"[^\w-]+", "_", stem).strip("_") or "own"
    file = out or Path(f"{name}.yaml")
    if file.exists():
        raise DataError(f"{file}: exists, and nothing is overwritten; choose another --out")
    if not dev and found.kind == SENTENCES:
        raise DataError(
            f"{found.path}: sentences have no scores to select by; name a dev set with --dev: a file of scored pairs, "
            "or a folder in BEIR's layout"
        )
    lines, train, test = found.lines(), _named(data), ""
    if dev:
        sets = [_named(one) for one in dev]
        roles = {role: column for role, column in found.roles.items() if role != column}
    else:
        parts = split(found, str(file.with_suffix("")))
        train, roles = str(parts["train"][0]), {}
        sets, test = [_named(str(parts["dev"][0]))], _named(str(parts["test"][0]))
        unit = "pairs" if found.kind == SCORED else "queries"
        for part, what in (("train", "rows"), ("dev", f"{unit}, which select"), ("test", f"{unit}, sealed")):
            lines.append(f"  {parts[part][0]}: {parts[part][1]:,} {what}")
    metrics = [dev_metrics(one)[0] for one in sets]
    selects = _flow({"name": metrics[0] if len(metrics) == 1 else f"mean({','.join(metrics)})"})
    named = {"columns": roles} if roles else {}
    values = {
        "name": name, "encoder": f"{_flow(encoder)}  # a hub id or a folder",
        "data": _flow({"train": train, **named, "dev": sets, "language": found.language}),
        "metric": f"{selects}  # on the dev set; the test set is for `analysis test`",
    }  # fmt: skip
    ready = READY[found.kind]
    text = (ready_folder() / f"{ready}.yaml").read_text(encoding="utf-8")
    with whole_file(file) as target:
        head = f"# {found.kind} of {found.path}: a first search, with the ranges of the ready space {ready}.\n"
        target.write((head + with_values(text, values)).encode())
    (checked,) = check_spaces([str(file)])
    if checked.space is None:
        raise DataError("\n".join(checked.problems))
    notes = [f"  {note}" for note in checked.notes]
    return Begun(file, (*lines, f"wrote {file}", *notes, *_next(file, f"{name}-1", test)))


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
        f"search check {file} --forecast": "what it will cost, measured by a few steps",
        f"search run {file}": "",
        f"search confirm {study}": "the best and the defaults on fresh seeds",
        "analysis best": "the answer",
        **({f'analysis test --reason "..." --set {test}': "once"} if test else {}),
        "analysis export": "a model for sentence-transformers",
    }
    width = max(map(len, commands))
    return ["Next", *(f"  {command:<{width}}  {why}".rstrip() for command, why in commands.items())]
