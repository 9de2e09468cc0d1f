"""A real `ray up` in a cloud of namespaces: search from the laptop, preemption, resume, scale down, `ray down`.

pytest -m slow tests/cluster/test_ray_up.py      # as root; at most 4 minutes on two idle cores
"""

from __future__ import annotations

import json
import os
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
LIMIT_S = 600  # the flow waits for each of its steps; this is for a machine that hangs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 60)]


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
    # The builtin data is enough, and a data folder below /tmp or /root does not exist inside the cloud.
    env = {k: v for k, v in os.environ.items() if k != "SEARCH_DATA_DIR"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env)
    shared = work / "shared"
    logs = "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(shared.glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    facts: dict[str, Any] = json.loads((shared / "seen.json").read_text())
    journal = shared / "runs" / "preempted" / "tracking.jsonl"
    facts["journal"] = [json.loads(line) for line in journal.read_text().splitlines()]
    facts["said"] = {log.stem: log.read_text() for log in shared.glob("*.log")}
    return facts


def test_the_cluster_comes_and_goes(seen: dict[str, Any]) -> None:
    assert (seen["up"], seen["down"]) == (0, 0)
    assert set(seen["nodes"].values()) == {"terminated"}


def test_workers_come_when_trials_wait_and_go_when_none_does(seen: dict[str, Any]) -> None:
    assert seen["workers_before"] == 0
    assert len(seen["workers"]) == 2
    assert seen["workers_after"] == 0
    assert len(seen["nodes"]) == 4, "head, two workers, one in place of the preempted one"


def test_a_preempted_trial_goes_on_elsewhere_from_its_checkpoint(seen: dict[str, Any]) -> None:
    retried = {e["id"] for e in seen["journal"] if e["e"] == "retry"}
    assert len(retried) == 1
    assert retried <= set(seen["holding"])
    trial = retried.pop()
    evaluations = [e for e in seen["journal"] if e["e"] == "eval" and e["id"] == trial]
    resumed_from = max(e["resumed_from"] for e in evaluations)
    assert resumed_from > 0
    examples = [e["examples"] for e in evaluations]
    assert examples == sorted(set(examples)), "an evaluation was written twice"
    assert any(e["examples"] > resumed_from for e in evaluations)


def test_every_trial_is_accounted_for(seen: dict[str, Any]) -> None:
    started = [e["id"] for e in seen["journal"] if e["e"] == "start"]
    assert Counter(e["stop"] for e in seen["journal"] if e["e"] == "end") == {"completed": len(started)}
    trials = {run["trial_id"]: run for run in seen["runs"] if run["role"] == "trial"}
    assert sorted(trials) == sorted(started)
    assert {(run["status"], run["stop"]) for run in trials.values()} == {("FINISHED", "completed")}
    assert [run["status"] for run in seen["runs"] if run["role"] == "study"] == ["FINISHED"]


def test_the_user_can_leave_and_come_back(seen: dict[str, Any]) -> None:
    assert seen["left"] == 130
    assert "search follow run-preempted-" in seen["said"]["run"]
    assert "search resume preempted --cluster lab.yaml" in seen["said"]["run"]
    assert seen["followed"] == 0
    assert "study preempted" in seen["said"]["follow"]
    assert seen["status"] == 0
    assert "preempted: finished" in seen["said"]["status"]


def test_resume_of_a_finished_study_runs_nothing_again(seen: dict[str, Any]) -> None:
    assert seen["resumed"] == 0
    assert "study preempted is finished" in seen["said"]["resume"]
    assert len([e for e in seen["journal"] if e["e"] == "life"]) == 2
    assert len([e for e in seen["journal"] if e["e"] == "start"]) == 3


def test_the_analysis_reads_the_heads_mlflow_through_the_tunnel(seen: dict[str, Any]) -> None:
    assert seen["best"] == 0
    best = max(e["best"] for e in seen["journal"] if e["e"] == "end")
    assert f"{100 * best:.2f}" in seen["said"]["best"]


def test_a_backup_into_a_folder_is_refused_with_a_warning(seen: dict[str, Any]) -> None:
    assert seen["backup"] == 2
    assert "ray down" in seen["said"]["backup"]


def test_only_ssh_answers_from_outside_and_the_dashboard_wants_the_token(seen: dict[str, Any]) -> None:
    assert seen["open_ports"] == [22]
    assert seen["without_token"] == 401
    assert seen["with_token"] == 200
