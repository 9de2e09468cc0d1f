"""Which column of a table is what: the roles, their usual names, and every message about columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainables.contract.errors import DataError
from trainables.data.cells import shown, whole
from trainables.data.files import kind_of

ROLES: dict[str, tuple[str, ...]] = {  # of columns; `data.columns` of a space maps them to a file's names
    "sentence": ("sentence", "text"),
    "anchor": ("anchor", "sent0", "query"),
    "positive": ("positive", "sent1", "pos"),
    "negative": ("negative", "hard_neg", "neg"),
    "first": ("sentence1",),
    "second": ("sentence2",),
    "score": ("score",),
    "subset": ("subset",),
}
NUMBERED = re.compile(r"negative_([1-9]\d?)")  # roles of several hard negatives
NUMBERED_NAME = re.compile(r"neg(?:ative)?_?([1-9]\d?)")  # the names of their columns
Columns = Mapping[str, str | Mapping[str, str]]  # role: column, for all files; entry of train or dev: its own columns

ALIASES: dict[str, tuple[str, ...]] = {  # read where a file has one of them and none of ROLES; docs/howto/data.md
    "sentence": ("sentences", "texts", "content", "body", "set"),
    "anchor": ("question", "premise"),
    "positive": ("answer", "passage", "document", "entailment"),
    "negative": ("negatives", "hard_negative", "contradiction"),
    "first": ("first", "text_a", "text1", "sent1", "s1", "sentence_1", "sentence_a", "question1"),
    "second": ("second", "text_b", "text2", "sent2", "s2", "sentence_2", "sentence_b", "question2"),
    "score": ("label", "labels", "similarity", "similarity_score", "relatedness_score", "gold", "is_duplicate"),
}
_DELIMITERS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}


def is_role(name: str) -> bool:
    """Whether `data.columns` may name it."""
    return name in ROLES or NUMBERED.fullmatch(name) is not None


def of_file(columns: Columns | None, name: str) -> dict[str, str]:
    """Role -> column of an entry of `data.train` or `data.dev`: its own columns, else those of all files."""
    own = (columns or {}).get(name)
    if isinstance(own, Mapping):
        return dict(own)
    return {role: column for role, column in (columns or {}).items() if isinstance(column, str)}


def column_of(role: str, header: Sequence[str], columns: Mapping[str, str] | None, aliases: bool = True) -> str | None:
    """The column of a role, blanks around its name apart; None if there is none, or if several aliases stand for it.

    Args: columns: role -> column, as the space gives them. aliases: also by `ALIASES`.
    """
    given = columns or {}
    for wanted in (given[role],) if role in given else ROLES.get(role, (role,)):
        if found := next((c for c in header if c == wanted), next((c for c in header if c.strip() == wanted), None)):
            return found
    if role in given or not aliases:
        return None
    number = NUMBERED.fullmatch(role)
    others = [f"neg_{number[1]}", f"negative{number[1]}", f"neg{number[1]}"] if number else ALIASES.get(role, ())
    named = {column for column in header if column.strip() in others and column not in given.values()}
    return named.pop() if len(named) == 1 else None


def labelled(header: Sequence[str]) -> str | None:
    """The column that may say which rows of pairs are positive ones."""
    return column_of("score", header, None)


def label_beside_pairs(path: Path, pair: Mapping[str, str], label: str, give: Callable[[str, str], str]) -> str:
    """Why pairs with a label are not read: not every row may be a positive pair.

    Args: give: how a role gets its column: (role, column) -> text.
    """
    anchor, positive = pair["anchor"], pair["positive"]
    all_positive = f"{give('anchor', anchor)} {give('positive', positive)}"
    scored = f"{give('first', anchor)} {give('second', positive)} {give('score', label)}"
    return (
        f"{path}: column {label} beside {anchor} and {positive}: if every row is a positive pair, give {all_positive}; "
        f"to train on the scores, give {scored}; else keep only the positive rows"
    )


def pick(
    path: Path,
    header: Sequence[str],
    roles: Sequence[str],
    columns: Mapping[str, str] | None,
    optional: Sequence[str] = (),
) -> dict[str, str]:
    """Role -> column of a file.

    Raises: DataError where a role has no column, with advice where the right one is clear, or where two have one.
    """
    if unknown := sorted(r for r in columns or () if not is_role(r)):
        raise DataError(f"data.columns: unknown role {unknown[0]!r}; allowed: {', '.join(ROLES)}, negative_1 ...")
    found = {role: column_of(role, header, columns) for role in (*roles, *optional)}
    if missing := [role for role in roles if found[role] is None]:
        raise DataError(_absent(path, header, roles, missing, columns))
    picked = {role: column for role, column in found.items() if column is not None}
    for role, column in picked.items():
        if other := next((r for r in picked if r != role and picked[r] == column), None):
            raise DataError(f"{path}: data.columns: {role} and {other} are both {column}; expected one role a column")
    return picked


def check_once(path: Path, header: Sequence[str], picked: Mapping[str, str]) -> None:
    """Raises: DataError if a column that is read is there twice."""
    for column in picked.values():
        if header.count(column) > 1:
            raise DataError(f"{path}:1: column {column} is there {header.count(column)} times; rename all but one")


def _absent(
    path: Path,
    header: Sequence[str],
    roles: Sequence[str],
    missing: Sequence[str],
    columns: Mapping[str, str] | None,
) -> str:
    if fault := header_fault(path, header, roles):
        return fault
    role = missing[0]
    wanted = columns[role] if columns and role in columns else " or ".join(ROLES.get(role, (role,)))
    got = ", ".join(_name(name) for name in header[:12]) + (", ..." if len(header) > 12 else "")
    return f"{path}: expected a column {wanted} ({role}), got {got or 'none'}; " + _advice(
        path, header, roles, missing, columns
    )


def header_fault(path: Path, header: Sequence[str], roles: Sequence[str]) -> str:
    """Why the first line of a CSV or TSV file cannot hold the names of columns, "" if it can: another delimiter, or a
    sentence or number in it.

    Args: roles: of the columns that are wanted.
    """
    if kind_of(path) not in (".csv", ".tsv") or not header:
        return ""
    if other := _other_delimiter(path, header):
        return other
    if (cell := next((name for name in header if not _is_name(name)), None)) is None:
        return ""
    usual = _delimiter(path).join(ROLES.get(role, (role,))[0] for role in roles)
    text = ", or rename it to .txt (one sentence a line)" if len(header) == 1 and "sentence" in roles else ""
    got = f"expected the names of the columns, got {shown(cell)}; is the header missing?"
    return f"{path}:1: {got} put a first line {usual!r} above it{text}"


def _advice(
    path: Path,
    header: Sequence[str],
    roles: Sequence[str],
    missing: Sequence[str],
    columns: Mapping[str, str] | None,
) -> str:
    """What to do about missing columns: names only where they are the right ones."""
    default = {role: column_of(role, header, None) for role in roles}
    if columns and all(default.values()):
        return f"list it with columns of its own: {{file: {path}, columns: {{{_mapping(default)}}}}}"
    taken = {column_of(role, header, columns) for role in roles}
    free = [name for name in header if name not in taken and name.strip()]
    found = {role: _likely(role, free, columns) for role in missing}
    if len(missing) == len(free) == 1:
        found = {missing[0]: free[0]}
    if all(found.values()) and len(set(found.values())) == len(found):
        return f"name it in data.columns, such as columns: {{{_mapping(found)}}}"
    return "name it in data.columns" if len(free) >= len(missing) else "add it"


def _likely(role: str, free: Sequence[str], columns: Mapping[str, str] | None) -> str | None:
    names = [
        *([columns[role]] if columns and role in columns else []),
        *ROLES.get(role, (role,)),
        *ALIASES.get(role, ()),
    ]
    return next((c for name in names for c in free if c.strip().lower() == name.lower()), None)


def _mapping(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{role}: {_name(name or '')}" for role, name in found.items())


def _name(name: str) -> str:
    """A column's name as YAML takes it, on one line."""
    return name if re.fullmatch(r"[\w.-]+( [\w.-]+)*", name) else whole(repr(name[:60]))


def _delimiter(path: Path) -> str:
    return "\t" if kind_of(path) == ".tsv" else ","


def _other_delimiter(path: Path, header: Sequence[str]) -> str | None:
    """The message where a file's delimiter is not that of its suffix."""
    mine, line = _delimiter(path), _delimiter(path).join(header)
    known = {name for names in (*ROLES.values(), *ALIASES.values()) for name in names}
    for other, word in _DELIMITERS.items():
        names = [name.strip().strip('"').lower() for name in line.split(other)]
        if other == mine or len(names) < 2 or not (known.intersection(names) or len(header) == 1):
            continue
        if len(names) <= len(header) or not all(map(_is_name, names)):
            continue
        fix = {",": "rename it to .csv", "\t": "rename it to .tsv"}.get(other, f"save it with {_DELIMITERS[mine]}")
        return f"{path}:1: expected fields separated by {_DELIMITERS[mine]}, got {word}: {shown(line)}; {fix}"
    return None


def _is_name(text: str) -> bool:
    """Whether a cell of the first line may be a column's name, rather than a sentence or a number."""
    words = text.split()
    if len(words) > 4 or len(text) > 60 or (words and re.search(r"[.!?。！？…]['\"”’]?$", words[-1])):
        return False
    return re.fullmatch(r"[-+]?\d*[.,]\d+", text.strip()) is None
