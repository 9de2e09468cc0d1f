"""Damaged or edited files of a study: one line that names the place, nothing run, nothing deleted; `--salvage`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from harness import Death, World, make_space

from search.cli.main import main
from search.store.journal import JournalError, fold, salvage
from search.store.ledger import Ledger


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A study of eight points whose driver crashed after some, beside a complete one."""
    space = make_space(
        {"trials": 8}, data={"train": "builtin", "dev": ["builtin"], "language": "en"}, metric={"name": "builtin_dev"}
    )
    World(space, tmp_path, study="whole").session()
    world = World(space, tmp_path, study="hurt")
    with pytest.raises(Death):
        world.session(die_at=50)
    return world


def call(world: World, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*words, "--storage", str(world.root)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, re.sub(
        r"^ +loading the search +[\d.]+ s\n", "", done.output
    )  # what took its time until then


def flipped(lines: list[bytes]) -> list[bytes]:
    return [*lines[:9], b"\xff" + lines[9][1:], *lines[10:]]


def cut_short(lines: list[bytes]) -> list[bytes]:
    return [*lines[:9], lines[9][: len(lines[9]) // 2] + b"\n", *lines[10:]]


def without_a_start(lines: list[bytes]) -> list[bytes]:
    first = next(i for i, line in enumerate(lines) if b'"e":"start"' in line)
    return lines[:first] + lines[first + 1 :]


@pytest.mark.parametrize("damage", [flipped, cut_short, without_a_start])
def test_damaged_journal_is_one_line_and_other_studies_are_listed(
    damage: Callable[[list[bytes]], list[bytes]], world: World
) -> None:
    journal = world.folder.journal
    damaged = b"".join(damage(journal.read_bytes().splitlines(keepends=True)))
    journal.write_bytes(damaged)
    for words in (("status", "hurt"), ("resume", "hurt"), ("confirm", "hurt")):
        code, text = call(world, *words)
        assert code == 2, text
        assert len(text.splitlines()) == 1
        assert f"{journal}:" in text
        assert "--salvage" in text
    code, text = call(world, "list")
    assert code == 0
    assert "whole" in text
    assert f"{journal}:" in text
    assert journal.read_bytes() == damaged, "nothing was written"


@pytest.mark.parametrize("content", ["", "\x00", "name: [", "- 1\n"])
def test_unreadable_space_is_one_line_and_other_studies_are_listed(content: str, world: World) -> None:
    world.folder.space.write_text(content)
    code, text = call(world, "status", "hurt")
    assert code == 2, text
    assert str(world.folder.space) in text
    code, text = call(world, "list")
    assert code == 0
    assert "whole" in text
    assert str(world.folder.space) in text


def test_salvage_sets_damaged_lines_aside_and_keeps_the_rest(world: World) -> None:
    journal = world.folder.journal
    whole = journal.read_bytes()
    ended = {i for i, r in fold(journal, Ledger()).trials.items() if not r.open}
    journal.write_bytes(b"".join(flipped(whole.splitlines(keepends=True))))
    with pytest.raises(JournalError, match=":10: "):
        fold(journal, Ledger())
    lost = salvage(journal)
    assert lost[0] == "line 10: unreadable"
    assert "damaged-1" in lost[-1]
    assert journal.with_name("tracking.jsonl.damaged-1").exists()
    driver = world.session()
    assert driver.status == "finished"
    assert len(driver.ledger.points) == 8
    assert ended <= {i for i, r in driver.ledger.trials.items() if not r.open}
    assert salvage(journal) == []


def test_edited_space_is_rejected_by_name_and_nothing_is_deleted(world: World) -> None:
    folder = world.folder
    journal = folder.journal.read_bytes()
    folder.journal.write_bytes(space_line(world) + journal)
    weights = Path(folder.trial("t0000")) / "best" / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"0")
    text = folder.space.read_text()
    folder.space.write_text(text.replace("mode: max", "mode: min").replace("repeats: 1", "repeats: 2"))
    for command in ("resume", "confirm"):
        code, said = call(world, command, "hurt")
        assert code == 2
        assert len(said.splitlines()) == 1
        assert "metric.mode: max is now min" in said
        assert "search.repeats: 1 is now 2" in said
    assert weights.exists()
    assert folder.journal.read_bytes() == space_line(world) + journal


def space_line(world: World) -> bytes:
    import json

    return json.dumps({"e": "space", "t": 1, "space": world.space.resolved()}).encode() + b"\n"
