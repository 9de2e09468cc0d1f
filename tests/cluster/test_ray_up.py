"""A real `ray up` in a cloud of namespaces: search from the laptop, preemption, resume, the head's
loss, scale down, `ray down`.

pytest -m slow tests/cluster/test_ray_up.py      # as root; six minutes on two cores
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import minicloud
import pytest

HERE = Path(__file__).parent
PACKAGES = ("openssh-server", "openssh-client", "rsync", "iproute2", "iptables")
LIMIT_S = 1800  # the flow waits for each of its steps; this is for a machine that hangs

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the flow on the laptop saw (ray_up_flow.py), and the study's journal. Skipped where no cloud can run."""
    if (lacking := minicloud.missing()).startswith("not installed") and os.geteuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for line in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *PACKAGES]):
            subprocess.run(["apt-get", *line], env=env, capture_output=True, check=False)
        lacking = minicloud.missing()
    if lacking:
        pytest.skip(f"test cloud: {lacking}")
    work = tmp_path_factory.mktemp("cloud")
    python = Path(sys.prefix) / "bin" / "python"
    command = [str(python), str(HERE / "minicloud.py"), "--workdir", str(work), "--venv", sys.prefix, "--"]
    command += [str(python), str(HERE / "ray_up_flow.py"), str(HERE.parents[1])]
    # The builtin data is enough; a data folder below the home or the temporary folder is not there inside the cloud.
    env = {k: v for k, v in os.environ.items() if k != "SEARCH_DATA_DIR"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env)
    shared = work / "shared"
    logs = "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(shared.glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    facts: dict[str, Any] = json.loads((shared / "seen.json").read_text())
    facts["journal"] = [json.loads(line) for line in (shared / "tracking.jsonl").read_text().splitlines()]
    facts["said"] = {log.stem: log.read_text() for log in shared.glob("*.log")}
    return facts


def test_an_unfinished_file_is_rejected_before_anything_starts(seen: dict[str, Any]) -> None:
    assert (seen["unfinished"], seen["refused"], seen["checked"]) == (2, 2, 0)
    assert "SET-your-bucket is still to be set" in seen["said"]["unfinished"]
    assert seen["said"]["refused"] == seen["said"]["unfinished"]


def test_the_cluster_comes_and_goes(seen: dict[str, Any]) -> None:
    assert (seen["up"], seen["down"]) == (0, 0)
    assert set(seen["nodes"].values()) == {"terminated"}


def test_workers_start_for_waiting_trials_and_stop_when_idle(seen: dict[str, Any]) -> None:
    assert seen["workers_before"] == 0
    assert len(seen["workers"]) == 2
    assert seen["workers_after"] == 0
    assert len(seen["nodes"]) >= 4, "head, two workers, one in place of the preempted one"
    first, second = seen["made"]
    assert abs(first - second) < 8, "both were asked for at once, not the second when the first was up"


def test_a_preempted_trial_resumes_elsewhere_from_its_checkpoint(seen: dict[str, Any]) -> None:
    retried = {e["id"] for e in seen["journal"] if e["e"] == "retry"}
    assert len(retried) == 1
    assert retried <= set(seen["holding"])
    trial = retried.pop()
    evaluations = [e for e in seen["journal"] if e["e"] == "eval" and e["id"] == trial]
    again = next(i for i, e in enumerate(evaluations) if e["resumed_from"] > 0)
    resumed_from = evaluations[again]["resumed_from"]
    close = next(e for e in seen["journal"] if e["e"] == "close")
    assert evaluations[again]["t"] < close["t"], "in the same life of the study"
    examples = [e["examples"] for e in evaluations]
    assert examples == sorted(set(examples)), "an evaluation was written twice"
    # Checkpoints are written by the clock, so the last one may be a little older than the last evaluation.
    assert evaluations[again]["examples"] > resumed_from > 0


def test_every_trial_is_accounted_for(seen: dict[str, Any]) -> None:
    started = [e["id"] for e in seen["journal"] if e["e"] == "start"]
    assert len(started) == 3 + 2, "three trials; the best point and the baseline on a fresh seed"
    assert Counter(e["stop"] for e in seen["journal"] if e["e"] == "end") == {"completed": len(started)}
    trials = {run["trial_id"]: run for run in seen["runs"] if run["role"] == "trial"}
    assert sorted(trials) == sorted(started)
    assert {(run["status"], run["stop"]) for run in trials.values()} == {("FINISHED", "completed")}
    assert [run["status"] for run in seen["runs"] if run["role"] == "study"] == ["FINISHED"]


def test_a_method_from_a_file_is_searched_on_the_cluster(seen: dict[str, Any]) -> None:
    trials = [run for run in seen["runs"] if run["role"] == "trial"]
    assert {run["method"] for run in trials} == {"dcl"}
    assert "dcl" in seen["said"]["best"]


def test_ctrl_c_leaves_the_job_running(seen: dict[str, Any]) -> None:
    assert seen["left"] == 130
    job = r"run-preempted-[\d-]+"
    for line in (f"search follow {job}", "search status preempted", f"search stop {job}", "search resume preempted"):
        assert re.search(f"{line} --cluster cluster.yaml", seen["said"]["run"])


def test_stop_pauses_and_resume_uses_the_checkpoints(seen: dict[str, Any]) -> None:
    assert (seen["stop"], seen["followed"], seen["status"], seen["resumed"]) == (0, 130, 0, 0)
    assert "pausing" in seen["said"]["follow"]
    assert "preempted: interrupted" in seen["said"]["status"]
    assert "go on: search resume preempted --cluster cluster.yaml" in seen["said"]["status"]
    assert "study preempted is finished" in seen["said"]["resume"]
    assert "search ui preempted --cluster cluster.yaml" in seen["said"]["resume"]
    paused = {e["id"] for e in seen["journal"] if e["e"] == "pause"}
    assert paused
    assert paused <= {e["id"] for e in seen["journal"] if e["e"] == "again"}
    assert [e["status"] for e in seen["journal"] if e["e"] == "close"] == [
        "interrupted",
        "finished",
        "finished",
    ]  # the crashed sessions have none


def test_a_crashed_driver_is_started_again_by_its_job(seen: dict[str, Any]) -> None:
    assert (seen["crashed"], seen["resumed"]) == (0, 0)
    assert "the driver crashed (exit code 137) and is started again" in seen["said"]["resume"]
    assert seen["sessions"] == 3, "the first, the resumed, the one after the crash"


def test_ray_up_again_spares_a_running_study(seen: dict[str, Any]) -> None:
    assert seen["again"] == 0
    assert "Ray is not restarted: studies run here (preempted)" in seen["said"]["again"]
    assert "search stop" in seen["said"]["again"]


def test_a_lost_head_loses_nothing(seen: dict[str, Any]) -> None:
    """Driver, Ray, MLflow and their disk end at once; a new head goes on from what the bucket has."""
    assert (seen["left_lost"], seen["second_up"], seen["confirmed"]) == (130, 0, 0)
    old, new = seen["heads"]
    assert old != new
    before, after = seen["before_loss"], seen["journal"]
    assert after[: len(before)] == before, "the journal goes on where it was"
    held = set(seen["confirming"])
    assert held
    # What held a checkpoint goes on from it (one whose checkpoint is its last has nothing to evaluate).
    later = [e for e in after if e.get("id") in held and e["e"] in ("eval", "end") and e not in before]
    assert [e for e in later if e["e"] == "eval" and not e["resumed_from"]] == []
    ended = {e["id"]: e["stop"] for e in after if e["e"] == "end" and e["id"] in held}
    assert ended == dict.fromkeys(held, "completed")
    # Before the study goes on, `search track` has filled the new head's MLflow from the journal.
    assert seen["track"] == 0
    trials = {run["trial_id"]: run["status"] for run in seen["rebuilt"] if run["role"] == "trial"}
    assert sorted(trials) == sorted(e["id"] for e in before if e["e"] == "start")
    assert "RUNNING" not in trials.values()


def test_confirm_runs_fresh_seeds(seen: dict[str, Any]) -> None:
    assert seen["confirmed"] == 0
    confirmed = [e for e in seen["journal"] if e["e"] == "start" and e["stage"] == "confirm"]
    assert len(confirmed) == 2
    assert {e["seed"] for e in confirmed}.isdisjoint(
        e["seed"] for e in seen["journal"] if e.get("stage") == "search" and "seed" in e
    )


def test_the_pages_and_the_analysis_come_through_the_tunnel(seen: dict[str, Any]) -> None:
    assert (seen["pages"], seen["best"]) == (0, 0)
    assert "preempted: trials, best first" in seen["said"]["ui"]
    assert "confirmed" in seen["said"]["best"]


def test_only_ssh_is_open_and_the_dashboard_needs_the_token(seen: dict[str, Any]) -> None:
    assert seen["open_ports"] == [22]
    assert seen["without_token"] == 401
    assert seen["with_token"] == 200
