"""Thousands of damaged copies of the shipped spaces: each is a space or a list of one-line mistakes, never a crash."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from search.space import check_spaces, smoke, space_from

pytestmark = pytest.mark.costly

SPACES = Path(__file__).parents[2] / "spaces"
FILES = sorted(path.relative_to(SPACES) for path in SPACES.rglob("*.yaml"))
NASTY = [
    "", "null", "~", "true", "no", "-1", "0", "1e-5", "1e400", ".nan", "-.inf", "9" * 400, "[]", "{}", "[[]]", "[" * 60,
    "{a: {b: c}}", "'", '"', "*x", "&x", "<<: *x", "!!python/name:os.system", "!t", "|", ">", "? ", "- ", ": ", "\t",
    "\0", "\u2028", "#", "é", "\ufeff", "%YAML 1.1", "---", "...", '"\\ud800"', "auto", "8h", "grid",
    "{float: [0, 1], log: true}", "{choice: [cls, cls]}", "{int: [1, 99999999]}", "extends: quickstart.yaml",
    "{grid: [1, 2], when: {batch_size: 3}}",
]  # fmt: skip
KEYS = [
    "params.learning_rate", "params.batch_size.choice", "data.dev.0", "search", "pruner.kind", "x.y", "points",
]  # fmt: skip


def damaged(text: str, rng: Random) -> bytes:
    """One to three random changes of a space file."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(lines))
        line = lines[i]
        start, end = sorted((rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
        change = rng.randrange(8)
        if change == 0:
            del lines[i]
            lines = lines or [""]
        elif change == 1:
            lines.insert(rng.randrange(len(lines) + 1), line)
        elif change == 2:
            lines[i] = line[:start] + rng.choice(NASTY) + line[start:]
        elif change == 3:
            lines[i] = line[:start] + rng.choice(NASTY) + line[end:]
        elif change == 4:
            lines[i] = line.partition(":")[0] + ": " + rng.choice(NASTY)
        elif change == 5:
            lines[i] = " " * rng.randrange(4) + line.strip()
        elif change == 6:
            lines[i] = line[:start] + line[end:]
        else:
            j = rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        k = rng.randrange(len(content) + 1)
        content = content[:k] + bytes([rng.randrange(256)]) + content[k + 1 :]
    return content


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped spaces in a folder of their own, so that `extends` finds its files."""
    return shutil.copytree(SPACES, tmp_path_factory.mktemp("fuzz") / "spaces")


def used(path: Path, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """The mistakes of a file; none after everything was done with its space that a search does first."""
    checked = check_spaces([path], overrides)[0]
    if checked.space is not None:
        assert checked.lines()
        assert space_from(checked.space.resolved()).resolved() == checked.space.resolved()
        smoke(checked.space)
    return checked.problems


@pytest.mark.parametrize("rounds", [700, pytest.param(2100, marks=pytest.mark.slow)])
def test_damaged_files_give_a_space_or_mistakes(rounds: int, copies: Path) -> None:
    rng = Random(20240607)
    good = 0
    for round_ in range(rounds):
        file = FILES[round_ % len(FILES)]
        path = (copies / file).with_name("damaged.yaml")
        content = damaged((SPACES / file).read_text(encoding="utf-8"), rng)
        path.write_bytes(content)
        problems = used(path)
        good += not problems
        for line in problems:
            assert line.isprintable(), content
            assert line.startswith(str(copies)), content
            assert len(line) < 1500, content
    assert rounds / 10 < good < rounds * 0.9  # the damage is neither harmless nor always fatal


def test_damaged_overrides_give_a_space_or_mistakes() -> None:
    rng = Random(7)
    for _ in range(300):
        ends = [rng.choice(["=", ".0=", ".float=", ""]) + rng.choice(NASTY) for _ in range(2)]
        problems = used(SPACES / "simcse_unsup.yaml", [rng.choice(KEYS) + end for end in ends])
        assert all(line.isprintable() for line in problems)
