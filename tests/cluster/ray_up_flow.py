"""What a user does on the laptop of the test cloud, from `ray up` to `ray down`; what was seen goes to seen.json.

python minicloud.py --workdir W --venv V -- python ray_up_flow.py REPOSITORY
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from minicloud import call

SHARED = Path("/tmp/shared")  # the bucket: the same folder on every host
STUDY = "preempted"
WORKER = {"node_config": {}, "resources": {"CPU": 1}, "min_workers": 0, "max_workers": 2}
ENV = r"""printf '%s\n' 'export PATH="{bin}:$PATH" PYTHONPATH="$HOME/project:$HOME/project/tests/cluster"' \
'export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1' \
'export SEARCH_STORAGE=/tmp/shared/runs MLFLOW_TRACKING_URI=http://127.0.0.1:5000' > ~/search.env"""
SPACE = """
extends: spaces/quickstart.yaml
name: mine
pruner: {kind: none}
smoke:
  search: {trials: 3, concurrent: 2}
  train: {epochs: 4, max_examples: 8000, eval_examples: 1000, checkpoint_seconds: 0.5}
"""


class Flow:
    """Runs the steps and notes what was seen and when."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self._began = time.monotonic()

    def note(self, **facts: Any) -> None:
        self.seen |= facts
        print(f"### {time.monotonic() - self._began:.1f}s {facts}", flush=True)
        (SHARED / "seen.json").write_text(json.dumps(self.seen, indent=1))

    def wait(self, what: str, ready: Callable[[], Any], seconds: float) -> Any:
        """The first true answer of `ready`. Raises: TimeoutError."""
        until = time.monotonic() + seconds
        while not (answer := ready()):
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not in {seconds:g} s")
            time.sleep(0.3)
        return answer


def lab_file(repository: Path) -> dict[str, Any]:
    """The project's cluster.yaml with what the test cloud has instead of AWS; everything else as it is."""
    config = yaml.safe_load((repository / "cluster.yaml").read_text())
    config["provider"] = {"type": "external", "module": "minicloud_provider.MiniCloudNodeProvider"}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": "~/.ssh/id"}
    head = {"node_config": {}, "resources": {"CPU": 0}, "max_workers": 0}
    config["available_node_types"] = {"head": head, "gpu_spot": WORKER}
    config |= {"max_workers": 2, "idle_timeout_minutes": 0.2}
    config |= {"initialization_commands": [], "file_mounts_sync_continuously": False}  # `external` has no defaults
    login = config["setup_commands"][-1]
    assert "bashrc" in login, "the last set-up command of cluster.yaml makes shells read search.env"
    config["setup_commands"] = [ENV.format(bin=Path(sys.executable).parent), login]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        small = "ray start --object-store-memory=100000000"
        config[key] = [line.replace("ray start", small) for line in config[key]]
    return config


def workers() -> dict[str, Any]:
    """The running workers, by name."""
    nodes = call("ls").items()
    return {k: n for k, n in nodes if n["state"] == "running" and n["tags"].get("ray-node-type") == "worker"}


def journal() -> list[dict[str, Any]]:
    path = SHARED / "runs" / STUDY / "tracking.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def holding() -> list[str]:
    """Trials that run, have been evaluated and have a checkpoint to go on from."""
    events = journal()
    ended = {e["id"] for e in events if e["e"] == "end"}
    trials = SHARED / "runs" / STUDY / "trials"
    evaluated = dict.fromkeys(e["id"] for e in events if e["e"] == "eval")
    return [t for t in evaluated if t not in ended and any((trials / t / "last").glob("*"))]


def open_ports(address: str) -> list[int]:
    """Every TCP port of a host that answers."""
    found = []
    for port in range(1, 65536):
        with socket.socket() as s:
            s.settimeout(1.0)
            if s.connect_ex((address, port)) == 0:
                found.append(port)
    return found


def status_of(url: str, token: str | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def mlflow_runs(url: str) -> list[dict[str, Any]]:
    """Status and tags of every run that the head's MLflow has."""
    from search.ui import experiments_of

    ids = [e["experiment_id"] for e in experiments_of(url)]
    body = json.dumps({"experiment_ids": ids, "max_results": 1000}).encode()
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        runs = json.load(answer)["runs"]
    return [{"status": r["info"]["status"], **{t["key"]: t["value"] for t in r["data"]["tags"]}} for r in runs]


def command(*words: str, log: str) -> subprocess.Popen[bytes]:
    with (SHARED / log).open("ab") as output:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def main(repository: Path) -> None:
    flow = Flow()
    project = Path.home() / "project"
    for part in ("search", "trainables", "analysis", "spaces", "tests/cluster"):
        shutil.copytree(repository / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "mine.yaml").write_text(SPACE)
    (project / "lab.yaml").write_text(yaml.safe_dump(lab_file(repository)))
    os.chdir(project)
    os.environ |= {"PYTHONPATH": f"{project}:{project}/tests/cluster", "RAY_AUTH_MODE": "token"}
    sys.path.insert(0, str(project))
    python = sys.executable
    ray = str(Path(python).parent / "ray")
    search = [python, "-m", "search.cli"]
    subprocess.run([ray, "get-auth-token", "--generate"], check=True, capture_output=True)
    token = Path("~/.ray/auth_token").expanduser()
    token.chmod(0o600)

    flow.note(up=command(ray, "up", "-y", "lab.yaml", log="up.log").wait(timeout=150))
    assert flow.seen["up"] == 0, "see up.log"
    run = [*search, "run", "mine.yaml", "--smoke", "--name", STUDY, "--cluster", "lab.yaml"]
    following = command(*run, log="run.log")

    from search.tunnel import DASHBOARD, MLFLOW, find_head, tunnel

    head = find_head("lab.yaml")
    flow.note(workers_before=len(workers()), open_ports=open_ports(head.address))
    with tunnel(head, DASHBOARD) as way:
        jobs = f"http://127.0.0.1:{way.ports[DASHBOARD]}/api/jobs/"
        flow.note(without_token=status_of(jobs), with_token=status_of(jobs, token.read_text().strip()))
    running = following.poll  # None while it is
    flow.wait("two workers", lambda: len(workers()) == 2 or running() is not None, 150)
    flow.wait("two trials that hold a checkpoint", lambda: len(holding()) == 2 or running() is not None, 150)
    assert running() is None, "the search ended early, see run.log"
    flow.note(holding=holding(), workers=sorted(workers()))
    victim = min(workers())
    call("preempt", name=victim)
    flow.note(preempted=victim)

    following.send_signal(signal.SIGINT)  # the user closes the laptop; the job goes on
    flow.note(left=following.wait(timeout=30))
    flow.note(followed=command(*search, "follow", "--cluster", "lab.yaml", log="follow.log").wait(timeout=240))
    flow.note(status=command(*search, "status", "--cluster", "lab.yaml", log="status.log").wait(timeout=120))
    with tunnel(head, MLFLOW) as way:
        url = f"http://127.0.0.1:{way.ports[MLFLOW]}"
        flow.note(runs=mlflow_runs(url))
        os.environ["MLFLOW_TRACKING_URI"] = url
        best = [str(Path(python).parent / "analysis"), "best", "--metric", "builtin_dev"]
        flow.note(best=command(*best, log="best.log").wait(timeout=120))
    resume = [*search, "resume", STUDY, "--cluster", "lab.yaml"]
    flow.note(resumed=command(*resume, log="resume.log").wait(timeout=120))
    flow.wait("no workers", lambda: not workers(), 120)
    flow.note(workers_after=len(workers()))
    flow.note(backup=command(*search, "backup", "--cluster", "lab.yaml", log="backup.log").wait(timeout=120))
    flow.note(down=command(ray, "down", "-y", "lab.yaml", log="down.log").wait(timeout=120))
    flow.note(nodes={name: node["state"] for name, node in call("ls").items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
