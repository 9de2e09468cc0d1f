"""Plain English: words of an earlier private dialect stay out of pages, strings, docstrings, comments, test names."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (".", "analysis", "benchmarks", "docs", "search", "spaces", "tests", "trainables")
PACKAGES = ("analysis", "search", "trainables")  # whose strings users meet; those of tests quote them
KINDS = (".py", ".md", ".html", ".cff", ".toml", ".sbatch", ".yaml")
QUOTED = (
    "analysis/papers/published.yaml",
    "spaces/papers/",
    "tests/goldens/",
    "tests/search/bad_spaces/",
    "tests/studies/",
)
# what must not come back -> what to write. Patterns match in any case.
PLAIN = {
    r"\blives\b|\b(one|a|this|each|every|earlier|later|next|last|driver's) li(fe|ves)\b|\bsigns? of life\b": "session",
    r"\bbirths?\b": "creation",
    r"(?<!`)\bkept\b(?![:`])": "saved, stored, preserved",
    r"\btold\b(?! apart)|\bheard\b|\bhears\b|\btells\b(?! apart)": "reported, logged",
    r"\b(is|are|was|were|be|been|only) said\b|\bsa(y|ys|id) so\b|\bword to stop\b": "is reported, warns; stop request",
    r"\bluck(s|y)?\b": "seed noise, random seed",
    r"\bbought\b": "improvement from",
    r"\bwhole trials?\b": "full-length trial",
    r"\bsettle[sd]?\b(?!:)": "move to the device, accumulate; complete, decided",
    r"\bby hand\b|\bin a sitting\b": "manually, in one session",
    r"\bnobody\b": "no one, not",
    r"\bat hand\b": "available",
    r"\bknobs?\b": "hyperparameter",
    r"\bhopeless(ly)?\b": "dominated, not competitive",
    r"\bshown points?\b|\blessons?\b": "sampler view",
    r"\bguess(es|ed)?\b|\bpromise[sd]?\b": "predicted, imputed value",
    r"(?<!`)\brooms?\b(?!`| for)|\bhouses?\b|\bdoors?\b": "package, module, layer, extension point",
    r"\bbelieve[sd]?\b": "prior, assumed",
    r"\bthe others\b": "the name of what is meant",
    r"(?<!\w)sa(ys|id)\b(?!\.?/)": "prints, warns, reports, states",
    r"\bknows\b|\bknew\b": "has, recognises, supports",
    r"\basks\b|\basked\b": "requests, queries, prompts",
    r"\bd(ied|ies)\b": "crashed, ended",
    r"\blook(s|ed|ing)?\b(?! (up|like)|-?up)": "interim analysis; reads, checks, is",
}
FORBIDDEN = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in PLAIN.items()}


def faults(text: str) -> list[str]:
    return [f"{found[0]!r}: write {instead}" for word, instead in FORBIDDEN.items() if (found := word.search(text))]


def texts(path: Path, strings: bool) -> Iterator[tuple[int, str]]:
    """(line, text) of a file's words. In Python: docstrings, comments, test names; `strings` of two words or more."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(text)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if id(node) in documents or (strings and " " in node.value.strip()):
            yield from enumerate(node.value.splitlines(), node.lineno)


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*" if folder == "." else "**/*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in KINDS and path.is_file() and path != Path(__file__) and not name.startswith(QUOTED):
                yield path


def test_words_of_the_private_dialect_do_not_come_back() -> None:
    found = []
    for path in files():
        name = path.relative_to(ROOT)
        for line, text in texts(path, strings=name.parts[0] in PACKAGES):
            found += [f"{name}:{line}: {fault}" for fault in faults(text)]
    assert found == [], "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("its driver's life", True), ("a lucky seed", True), ("test one kept", True), ("a live page", False),
        ("no sign of life", True), ("no room for the text", False), ("guarantees", False),
    ],
)  # fmt: skip
def test_which_words_those_are(text: str, wrong: bool) -> None:
    assert bool(faults(text)) is wrong
