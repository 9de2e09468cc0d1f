"""The page that follows a running study: its content, who may stop, and its layout in a browser."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMEDRIVER, CHROMIUM, browser
from harness import Death, World, make_space

from search.console.live_page import ROWS, TOKEN_HEADER, LivePage, state
from search.console.status import StudyReader, study_status
from search.store.journal import exclusive
from search.store.ledger import Trial
from trainables.contract.trial import LOG

WIDTHS = (400, 800, 1400)
REGION = """
    const region = document.querySelector('.wide'), right = region.getBoundingClientRect().right;
    const seen = cell => cell.getBoundingClientRect().width > 0 && cell.getBoundingClientRect().right <= right;
    return [region.scrollWidth > region.clientWidth,
      [...document.querySelectorAll('td[data-column="best"]')].every(seen),
      [...document.querySelectorAll('#rows button')].every(seen)]"""
LETTERS = "return Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height))"


def nan_for_two(trial: Trial, k: int) -> str | None:
    return "nan" if trial.number == 2 and k == 2 else None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A study that is running: its driver's lock is held, trials are open."""
    world = World(make_space({"trials": 12}), tmp_path, fault=nan_for_two)
    with pytest.raises(Death):
        world.session(die_at=70)
    world.folder.lock.touch()
    with exclusive(world.folder):
        yield world


@pytest.fixture
def live(world: World) -> Iterator[LivePage]:
    page = LivePage(str(world.root), None, 0)
    yield page
    page.close()


def get(live: LivePage, path: str, **headers: str) -> Any:
    request = urllib.request.Request(live.url.split("#")[0] + path, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def post(live: LivePage, content: Any, **headers: str) -> tuple[int, Any]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    request = urllib.request.Request(live.url.split("#")[0] + "stop", data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_state_equals_the_terminals(live: LivePage, world: World) -> None:
    state = get(live, "state")
    assert state["status"]["state"] == "running"
    assert state["studies"] == ["fake-1"]
    assert state["best"] in state["curves"]
    best = next(row for row in state["rows"] if row["trial"] == state["best"])
    assert best["best"] == f"{100 * state['status']['best']:.2f}"
    assert max(value for _, value in state["curves"][state["best"]]) == pytest.approx(float(best["best"]), abs=0.01)
    assert [(f["trial"], f["stop"]) for f in state["failures"]] == [("t0002", "failed:nan")]
    running = {row["trial"] for row in state["rows"] if row["running"]}
    assert running
    log = Path(world.folder.trial("t0000")) / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("said something\n")
    assert "  said something" in get(live, "log?trial=t0000")["lines"]


def test_the_best_stay_on_the_page_beside_many_open_trials(tmp_path: Path) -> None:
    world = World(make_space({"trials": 4}), tmp_path)
    world.session()
    lines = [json.loads(line) for line in world.folder.journal.read_text().splitlines()]
    start, evaluation = (next(e for e in lines if e["e"] == kind) for kind in ("start", "eval"))
    with world.folder.journal.open("a") as file:
        for n in range(100, 400):
            events = [{**start, "id": f"t0{n}", "number": n}, {**evaluation, "id": f"t0{n}", "best": n / 1000}]
            events += [{"e": "pause", "t": 0, "id": f"t0{n}"}] if n < 200 else []
            file.writelines(json.dumps(event) + "\n" for event in events)
    data = state(StudyReader(world.folder), 0)
    assert data["not_shown"] == {"running": 200 - ROWS, "paused": 100 - ROWS}
    assert data["best"] in data["curves"]
    assert {"t0399", "t0199", data["best"]} <= {row["trial"] for row in data["rows"]}


def test_a_refresh_gives_what_a_fresh_read_gives(world: World) -> None:
    def seen(reader: StudyReader) -> Any:
        return reader.read(), reader.curves, reader.failures, state(reader, 0)["rows"]

    reader = StudyReader(world.folder)
    seen(reader)
    whole = world.folder.journal.read_bytes()
    half = whole[: whole.rindex(b"\n", 0, len(whole) // 2) + 1]
    for content in (half + b'{"e":"torn', whole, half, whole):  # the third one is another journal
        world.folder.journal.write_bytes(content)
        assert seen(reader) == seen(StudyReader(world.folder))
    os.utime(world.folder.space, (1, 1))  # as `resume --set` writes it
    assert seen(reader) == seen(StudyReader(world.folder))
    assert any(reader.curves.values())
    assert reader.failures


def test_only_the_token_stops(live: LivePage, world: World) -> None:
    assert post(live, {"study": "fake-1"})[0] == 403
    assert post(live, {"study": "fake-1"}, **{TOKEN_HEADER: "x" * 32})[0] == 403
    assert not world.folder.asked_to_stop()
    right = {TOKEN_HEADER: live.token}
    assert post(live, {"study": "fake-1"}, Host="evil.example", **right)[0] == 403
    assert post(live, b"[]", **right)[0] == 400
    assert post(live, {"study": "fake-1", "trial": "t0000"}, **right) == (409, {"error": "trial t0000 is not running"})
    assert post(live, {"study": "../x", "trial": "t0000"}, **right)[0] == 409
    running = next(row["trial"] for row in get(live, "state")["rows"] if row["running"])
    assert post(live, {"study": "fake-1", "trial": running}, **right)[0] == 200
    assert world.folder.asked_to_stop(running)
    assert not world.folder.asked_to_stop()
    assert post(live, {"study": "fake-1"}, **right)[0] == 200
    assert world.folder.asked_to_stop()


def test_another_machines_study_is_not_stopped_from_here(
    world: World, live: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word is left on this machine's disk, and a trial's would stay there until this machine drives the study."""
    status, space, ledger = study_status(world.folder)
    assert status.state == "running"
    elsewhere = replace(status, holder="head-of-cluster, last heartbeat 2s ago")
    monkeypatch.setattr("search.console.live_page.study_status", lambda _: (elsewhere, space, ledger))
    monkeypatch.setattr("search.console.status.alive", lambda _: False)
    right = {TOKEN_HEADER: live.token}
    said = "study fake-1 is not running on this machine: held by head-of-cluster, last heartbeat 2s ago"
    for asked in ({"study": "fake-1"}, {"study": "fake-1", "trial": next(iter(ledger.open_trials))}):
        assert post(live, asked, **right) == (409, {"error": said})
    assert not world.folder.asked_to_stop()
    assert not any(world.folder.asked_to_stop(trial) for trial in ledger.open_trials)


def test_a_slow_verdict_is_one_line(live: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.console.live_page.VERDICT_S", 0.01)
    with pytest.raises(urllib.error.HTTPError, match="409") as refused:
        get(live, "verdict")
    assert json.load(refused.value) == {"error": "analysis best fake-1: no answer in 0.01 s; run it in a terminal"}


def test_another_host_name_is_rejected(live: LivePage) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(live, "state", Host="evil.example")


@pytest.mark.costly
@pytest.mark.skipif(not CHROMEDRIVER or not CHROMIUM, reason="no Chromium with chromedriver here")
def test_in_a_browser(live: LivePage, world: World, tmp_path: Path) -> None:
    pictures = Path(os.environ.get("PICTURES", tmp_path))
    with browser() as window:
        for width in WIDTHS:
            window.width(width)
            window.open("about:blank")
            window.open(live.url)
            window.until(
                "return document.querySelectorAll('#rows tr').length > 3 && document.querySelector('polyline')"
            )
            assert window.run("return document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
            assert window.run(REGION) == [False, True, True], "no column is cut: what matters least is left out"
            assert window.run(LETTERS) >= 12, "the figure's letters are as large as the page's"
            assert (window.run("return document.getElementById('dropped').textContent") == "") == (width == 1400)
            window.picture(pictures / f"live-{width}.png")
        assert window.hosts() <= {live.url.split("/")[2]}
        assert [line for line in window.console() if line.startswith(("SEVERE", "WARNING"))] == []
        assert window.run("return document.title") == "fake-1: running"
        assert window.run("return document.querySelector('tr.best td').textContent") == "best base"
        window.key("\ue004")  # Tab: every control is reached by it
        reached = {window.run("return document.activeElement.id || document.activeElement.dataset.key || ''")}
        for _ in range(6):
            window.key("\ue004")
            reached.add(window.run("return document.activeElement.id || document.activeElement.dataset.key || ''"))
        assert {"study", "stop"} <= reached
        window.run("window.confirm = () => true; document.getElementById('stop').click()")
        assert "the study pauses" in window.until("return document.getElementById('answer').textContent")
    assert world.folder.asked_to_stop()


def test_module_of_the_user_named_as_ours_is_not_run(
    live: LivePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "analysis.py").write_text("print('the module of the user')")
    monkeypatch.chdir(tmp_path)
    assert "the module of the user" not in get(live, "verdict")["text"]
