"""What a terminal shows while a search runs: the first half minute, the table at any width, colour or none."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness import Death, World, make_space
from rich.console import Console

from search.console.display import LiveTable, Phases, cells, display_for, parted, trial_table
from search.space import Space, space_from
from search.store.journal import fold, read
from search.store.ledger import Ledger, Trial, TrialRecord
from search.wording import between, counted, failed_kinds, number, seconds_left
from trainables.contract import trial as phases

ROOT = Path(__file__).parents[2]


def record(n: int, **fields: object) -> TrialRecord:
    point = {"learning_rate": 1.234e-5 * (n + 1), "batch_size": 64}
    trial = Trial(
        id=f"t{n:04d}", number=n, repeat=0, seed=0, stage="search", point=point, params=point, point_id=str(n),
        baseline="paper" if n == 0 else "",
    )  # fmt: skip
    given = {"state": "completed", "examples": 250_000, "planned": 1_000_000, "value": 0.71234, "best": 0.7 + n / 1000}
    return TrialRecord(trial=trial, seconds=125.0, **{**given, **fields})  # type: ignore[arg-type]


def drawn(width: int, colour: bool = False, **fields: object) -> str:
    records = [record(n, **fields) for n in range(4)]
    table, dropped = trial_table(records, make_space(), width, "t0003", {})
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system="standard" if colour else None)
    console.print(table)
    return out.getvalue() + f"dropped: {','.join(dropped)}"


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
def test_no_width_cuts_a_number(width: int) -> None:
    shown = drawn(width)
    assert "…" not in shown
    lines = shown.splitlines()
    assert max(map(len, lines[:-1])) <= width
    assert len(lines) == 1 + 4 + 1
    for n in range(4):
        assert f"{70 + n / 10:.2f}" in lines[n + 1]
        assert f"t{n:04d}" in lines[n + 1]


def test_the_least_important_columns_go_first() -> None:
    assert drawn(200).splitlines()[-1] == "dropped: "
    assert drawn(80).splitlines()[-1] == "dropped: ex/s,took"
    assert drawn(60).splitlines()[-1] == "dropped: ex/s,took,learning_rate"
    assert "learning_rate" in drawn(40).splitlines()[-1]
    wide = drawn(200, memory_gb=12.34).splitlines()[1]
    assert "12.3 GB" in wide
    assert " 2,000 " in wide  # examples a second


def test_best_and_baseline_are_marked_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_, last = drawn(80).splitlines()[1:-1]
    assert first.split()[:2] == ["base", "t0000"]
    assert last.split()[:2] == ["best", "t0003"]
    assert cells(record(0), [], "t0000", {})[""] == "best base"
    assert "\x1b[1;32m" in drawn(80, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;32m" not in drawn(80, colour=True)


def drawn_live(space: Space, ledger: Ledger, *events: dict[str, Any]) -> str:
    out = io.StringIO()
    display = LiveTable(Console(file=out, width=120, force_terminal=True, color_system=None), space, ledger)
    for event in events:
        display.observe(event)
    display._console.print(display._draw())
    return out.getvalue()


def test_a_trial_shows_its_phase_before_its_first_evaluation(tmp_path: Path) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    with pytest.raises(Death):
        world.session(die_at=12)
    ledger = fold(world.folder.journal, Ledger())
    trial_id = next(iter(ledger.open_trials))
    phase = {"e": "phase", "t": 0, "id": trial_id, "what": "tokenising", "done": 3, "of": 4}
    assert "tokenising 75%" in drawn_live(world.space, ledger, phase)
    assert "tokenising" not in drawn_live(world.space, ledger, phase, {"e": "eval", "t": 0, "id": trial_id})


@pytest.mark.parametrize("height", [8, 24, 50])
def test_many_running_trials_leave_the_best_on_the_screen(height: int) -> None:
    records = [record(n) for n in range(20)] + [record(n, state="running", best=n / 1000) for n in range(20, 220)]
    ledger = Ledger(trials={r.trial.id: r for r in records}, best=records[19])
    ledger.open_trials = {r.trial.id: r for r in records[20:]}
    display = LiveTable(Console(file=io.StringIO(), width=120, height=height), make_space(), ledger)
    with display._console.capture() as drawn:
        display._console.print(display._draw())
    lines = drawn.get().splitlines()
    assert len(lines) <= height
    rows = [line.split() for line in lines if re.search(r" t0\d\d\d ", line)]
    assert rows[-1][:2] == ["base", "t0000"]
    assert ["best", "t0019"] in [row[:2] for row in rows]
    running = [row[0] for row in rows if "running" in row]
    assert running[-1] == "t0219", "the best of them"
    assert f"not shown: {200 - len(running)} more running" in drawn.get()


def test_paused_trials_stand_in_the_table() -> None:
    """Under pruner asha most trials wait at a rung until the search is over."""
    paused = [record(8, state="paused"), record(9, state="running")]
    ledger = Ledger(trials={r.trial.id: r for r in paused}, open_trials={r.trial.id: r for r in paused})
    shown = drawn_live(make_space(), ledger)
    assert re.search(r"t0008 +paused", shown)
    assert shown.count("t0009") == 1


def test_verbose_adds_a_line_for_every_evaluation(tmp_path: Path) -> None:
    """In a log file, and on a terminal above the table, which shows the last one of each trial only."""
    world = World(make_space({"trials": 2}), tmp_path)
    driver = world.session()
    (event, *_) = [e for e in read(world.folder.journal) if e["e"] == "eval"]
    line = f"{event['id']} {event['examples']:,} of {event['planned']:,} examples: {number(event['value'])}"
    said = {}
    for terminal, verbose in itertools.product((False, True), repeat=2):
        out = io.StringIO()
        console = Console(file=out, width=120, force_terminal=terminal, color_system=None)
        display_for(console, world.space, driver.ledger, verbose).observe(event)
        said[terminal, verbose] = out.getvalue().splitlines()
    assert said == {(False, False): [], (False, True): [line], (True, False): [], (True, True): [line]}


def test_a_list_of_facts_is_broken_between_them() -> None:
    facts = "quickstart: 3 of 16 points, best builtin_dev 39.89 (t0001), 2m39s, about 3m10s left"
    assert parted(facts, 80).splitlines()[1] == "    about 3m10s left"
    assert parted(facts, 36).splitlines()[1] == "    best builtin_dev 39.89 (t0001),"
    assert parted(facts, len(facts)) == facts


def test_the_opening_follows_one_trial_and_ends_with_a_result() -> None:
    out = io.StringIO()
    opening = Phases(Console(file=out, width=100))
    with opening:
        opening.begin("starting Ray")
        assert opening.observe({"e": "start", "id": "t0000"})
        assert opening.observe({"e": "phase", "id": "t0000", "what": "tokenising", "done": 1, "of": 2})
        assert opening.observe({"e": "phase", "id": "t0001", "what": "reading the data", "done": 0, "of": 0})
        assert opening.observe({"e": "phase", "id": "t0000", "what": "tokenising", "done": 2, "of": 2})
        assert not opening.observe({"e": "eval", "id": "t0000"})
        assert not opening.observe({"e": "start", "id": "t0002"})
    lines = [line.split("  ")[1] for line in out.getvalue().splitlines()]
    assert lines == ["starting Ray", "starting a trial's process", "tokenising", "first result after 0 s"]


def test_phases_are_reported_to_listeners_at_intervals() -> None:
    said: list[tuple[str, int, int]] = []
    phases.phase("nobody")
    with phases.phases_to(lambda *what: said.append(what)):
        for k in range(1000):
            phases.phase("tokenising", k, 1000)
        phases.phase("training")
    phases.phase("nobody")
    assert said == [("tokenising", 0, 1000), ("training", 0, 0)]


def test_the_time_left_ignores_the_start() -> None:
    """Ten minutes went by before the first trial; trials take 100 s, two at a time, eight are to come."""
    space = make_space({"trials": 12})
    ledger = Ledger()
    for n in range(2):
        ended = record(n, examples=1000, planned=1000)
        ended.seconds = 100.0 + 10 * n
        ledger.trials[ended.trial.id] = ended
        ledger.points[n] = {"seeds": 1}
        ledger.stops["completed"] += 1
    for n in (2, 3):
        running = record(n, state="running", examples=500, planned=1000)
        running.seconds = 50.0
        ledger.trials[running.trial.id] = ledger.open_trials[running.trial.id] = running
    left = seconds_left(space, ledger, 710.0)
    assert left is not None
    low, high = left
    expected = (8 * 105 + 2 * 50) / 2
    assert low < expected < high
    assert (low + high) / 2 == pytest.approx(expected)
    assert high - low < expected
    slower = seconds_left(space_from_time(space, 720.0), ledger, 710.0)
    assert slower == (10.0, 10.0), "the time budget ends it first"


def test_trials_may_end_while_the_table_is_drawn() -> None:
    """rich draws it in a thread of its own."""
    ledger, space = Ledger(), make_space({"trials": 12})

    class Kind(str):
        def startswith(self, *start: Any) -> bool:
            ledger.stops[f"failed:{len(ledger.stops)}"] += 1
            return super().startswith(*start)

    class Settled(dict[str, int]):
        def __getitem__(self, name: str) -> int:
            ledger.points[len(ledger.points)] = {"seeds": 1}
            return super().__getitem__(name)

    ledger.stops[Kind("failed:oom")] = 1
    ledger.points[0] = Settled(seeds=1)
    ledger.trials["t0000"] = record(0)
    assert (counted(failed_kinds(ledger)), ledger.failed(), ledger.ended()) == ("1 oom", 2, 3)
    assert seconds_left(space, ledger, 0.0)


def space_from_time(space, seconds):  # type: ignore[no-untyped-def]
    plain = space.resolved()
    plain["search"]["time"] = seconds
    return space_from(plain)


def test_ranges_and_values_as_text() -> None:
    from analysis.tables.metric import parse_metric

    assert between(170, 190) == "about 3m00s"
    assert between(60, 180) == "1m00s to 3m00s"
    assert number(0.50634) == f"{0.50634 * parse_metric('stsb_dev').scale:.2f}" == "50.63"


@pytest.mark.slow  # of seconds: nothing may run beside it
@pytest.mark.ray
def test_no_second_of_the_quick_start_is_silent(tmp_path: Path) -> None:
    """The first line at once, then never three seconds without a word (more where others keep the machine busy)."""
    main, other = pty.openpty()
    command = [str(Path(sys.executable).with_name("search")), "run", str(ROOT / "spaces" / "quickstart.yaml")]
    command += ["--storage", str(tmp_path), "--set", "search.trials=1", "--set", "train.max_examples=500"]
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm"})
    os.close(other)
    times, text = [began], b""
    while True:
        ready, _, _ = select.select([main], [], [], 120)
        try:
            data = os.read(main, 65536) if ready else b""
        except OSError:  # its terminal is closed
            data = b""
        if not data:
            break
        times.append(time.monotonic())
        text += data
    assert process.wait(timeout=60) == 0, text.decode()
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps[0] < 0.5 * busy, "the first line"
    assert max(gaps) < 3.0 * busy, f"silent {max(gaps):.1f} s"
    shown = text.decode()
    for phase in ("starting Ray", "starting a trial's process", "reading the data", "loading the encoder", "training"):
        assert phase in shown
    assert "Ctrl-C pauses the search" in shown
    assert "MLflow: search ui quickstart-1" in shown
