"""The journal file and the ledger it folds into."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from harness import World, make_space

from search.store.journal import (
    Journal,
    JournalReader,
    JournalWriteError,
    cut_torn_line,
    finite,
    fold,
    read,
    read_with_ends,
    salvage,
)
from search.store.ledger import Ledger


def test_torn_last_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = '{"e": "session","t":1}\n{"e":"close","t":2,"status":"finished","reason":""}\n'
    path.write_text(whole + '{"e":"start","t":3,"id":"t00')
    assert [e["e"] for e in read(path)] == ["session", "close"]
    cut_torn_line(path)
    assert path.read_text() == whole
    path.write_text("no line end at all")
    cut_torn_line(path)
    assert path.read_text() == ""
    path.write_text(whole + "x" * 200_000)  # longer than one block read from the end
    cut_torn_line(path)
    assert path.read_text() == whole
    cut_torn_line(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_offsets_lead_to_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text('{"e":"ä","t":1}\n{"e":"b","t":2}\n', encoding="utf-8")
    (_, first), (_, second) = read_with_ends(path)
    assert [event["e"] for event, _ in read_with_ends(path, first)] == ["b"]
    assert list(read_with_ends(path, second)) == []
    assert second == path.stat().st_size


def test_replayed_ledger_equals_the_live_one(tmp_path: Path) -> None:
    """Live and replayed states are equal, event for event."""
    world = World(make_space({"trials": 7}, pruner={"kind": "median"}), tmp_path)
    live = world.session().ledger
    replayed = Ledger()
    for event in read(world.folder.journal):
        replayed.apply(json.loads(json.dumps(event)))
    assert replayed == live
    journal = Journal(world.folder.journal, Ledger())
    journal.close()
    assert journal.ledger == live


def test_time_between_sessions_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", Ledger())
    journal.append("session", 1_000, stage="search")
    journal.append("close", 4_000, status="interrupted", reason="")
    assert journal.ledger.elapsed() == 3.0
    journal.append("session", 100_000, stage="search")
    assert journal.ledger.closed is None
    assert journal.ledger.elapsed(105_000) == 8.0
    journal.append("close", 106_000, status="finished", reason="")
    assert journal.ledger.elapsed() == 9.0


@pytest.mark.parametrize(
    "late", [{"e": "point", "number": 0}, {"e": "rung", "id": "t0000", "level": 0, "value": 0.5, "go": True}]
)
def test_events_written_while_planning_belong_to_no_session(late: dict[str, object], tmp_path: Path) -> None:
    """A driver killed between a trial's end and its point's must not count the time until the next session."""
    world = World(make_space({"trials": 1}), tmp_path)
    world.session()
    (start,) = [e for e in read(world.folder.journal) if e["e"] == "start"]
    ledger = Ledger()
    for event in ({"e": "session", "t": 1_000}, {**start, "t": 2_000}, {**late, "t": 90_000_000}):
        ledger.apply(event)
    assert ledger.elapsed() == 1.0


@pytest.mark.parametrize(("value", "kept"), [(0.5, 0.5), (float("nan"), None), (float("inf"), None), (None, None)])
def test_only_finite_values_are_stored(value: float | None, kept: float | None) -> None:
    assert finite(value) == kept


def test_lone_surrogates_are_escaped(tmp_path: Path) -> None:
    """From an emoji cut in two, in an error's message."""
    journal = Journal(tmp_path / "j", Ledger())
    journal.append("session", 1, stage="search")
    more = {"\ud83d": ["\ud83d"]}
    event = journal.append("close", 2, status="failed", reason="no label for: größer \ud83d", more=more)
    assert event["reason"] == journal.ledger.closed["reason"] == r"no label for: größer \ud83d"  # type: ignore[index]
    assert event["more"] == {r"\ud83d": [r"\ud83d"]}
    assert list(read(tmp_path / "j"))[-1] == event
    journal.close()


def test_study_does_not_finish_after_a_lost_event(tmp_path: Path) -> None:
    """Tune goes on after an error of ours in what it calls."""
    journal = Journal(tmp_path / "j", Ledger())
    journal.append("session", 1, stage="search")
    with pytest.raises(JournalWriteError, match=r"j: cannot be written: .* is not JSON serializable"):
        journal.append("start", 2, id={"t0000"})
    for status in ("finished", "out_of_budget"):
        with pytest.raises(JournalWriteError, match=r"j: cannot be written: .* is not JSON serializable"):
            journal.append("close", 3, status=status, reason="")
    journal.append("close", 3, status="failed", reason="")
    assert [e["e"] for e in read(tmp_path / "j")] == ["session", "close"]
    journal.close()


def test_all_events_but_evaluations_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(make_space({"trials": 2}), tmp_path)
    synced: list[str] = []
    path = world.folder.journal
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_text().splitlines()[-1]))
    world.session()
    kinds = [json.loads(line)["e"] for line in path.read_text().splitlines()]
    assert [json.loads(line)["e"] for line in synced] == [kind for kind in kinds if kind != "eval"]
    assert kinds.count("end") == 2


def test_a_reader_applies_each_event_once(tmp_path: Path) -> None:
    """Whatever it is read in: at every call the same ledger as a fold from the beginning."""
    world = World(make_space({"trials": 5}), tmp_path / "runs")
    world.session()
    lines = world.folder.journal.read_bytes().splitlines(keepends=True)
    path, seen = tmp_path / "tracking.jsonl", []
    reader = JournalReader(path, observe=seen.append)
    assert reader.read_on() == Ledger(), "no journal yet"
    with path.open("ab", buffering=0) as file:
        for line in lines:
            file.write(line[:7])
            reader.read_on()
            file.write(line[7:])
            assert reader.read_on() == fold(path, Ledger())
    assert seen == list(read(path))


@pytest.mark.parametrize("line", [1, 5, -1])
def test_a_reader_notices_a_salvaged_journal(tmp_path: Path, line: int) -> None:
    world = World(make_space({"trials": 5}), tmp_path)
    world.session()
    resets = []
    reader = JournalReader(world.folder.journal, reset=lambda: resets.append(1))
    reader.read_on()
    lines = world.folder.journal.read_bytes().splitlines(keepends=True)
    lines[line] = b"x" * (len(lines[line]) - 1) + b"\n"
    world.folder.journal.write_bytes(b"".join(lines))
    salvage(world.folder.journal)
    assert reader.read_on() == fold(world.folder.journal, Ledger())
    assert resets
