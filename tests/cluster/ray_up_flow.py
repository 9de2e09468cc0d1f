"""What a user does on the laptop of the test cloud, from `ray up` to `ray down`; what was seen goes to seen.json.

python minicloud.py --workdir W --venv V -- python ray_up_flow.py REPOSITORY
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import yaml
from minicloud import LAPTOP, call

from search.remote.cluster import DASHBOARD, MLFLOW, Tunnel, find_head
from search.store.bucket import fetch

SHARED = Path(tempfile.gettempdir()) / "shared"  # what the laptop leaves for the test
TOKEN = Path("~/.ray/auth_token")
STEP_S = 500.0  # limit of a step: a minute where nothing else runs on the machine
STUDY, CLUSTER = "preempted", "cluster.yaml"
BUCKET = "s3://bucket/search"
S3 = {  # an S3 server on the laptop's address (moto) stands for AWS's
    "AWS_ENDPOINT_URL": f"http://{LAPTOP}:9000", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip
WORKER = {"node_config": {}, "resources": {"CPU": 1}, "min_workers": 0, "max_workers": 2}
SPACE = """
extends: spaces/quickstart.yaml
name: mine
plugins: [dcl.py]  # a method that no package on the cluster has: it travels with the job
method: dcl
pruner: {kind: none}
smoke:
  search: {trials: 3, concurrent: null}
  train: {epochs: 9, max_examples: 36000, eval_examples: 2000, checkpoint_seconds: 0.5}
"""


class Flow:
    """Runs the steps and notes what was seen and when."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self._began = time.monotonic()

    def note(self, **facts: Any) -> None:
        self.seen |= facts
        self.seen["seconds"] = {**self.seen.get("seconds", {}), ", ".join(facts): round(time.monotonic() - self._began)}
        print(f"### {time.monotonic() - self._began:.1f}s {facts}", flush=True)
        (SHARED / "seen.json").write_text(json.dumps(self.seen, indent=1))

    def wait(self, what: str, ready: Callable[[], Any]) -> Any:
        """The first true answer of `ready`. Raises: TimeoutError."""
        until = time.monotonic() + STEP_S
        while not (answer := ready()):
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not in {STEP_S:g} s")
            time.sleep(0.3)
        return answer


def lab_file(repository: Path) -> dict[str, Any]:
    """The project's cluster.yaml with what the test cloud has instead of AWS; everything else as it is."""
    config = yaml.safe_load((repository / "cluster.yaml").read_text())
    config["provider"] = {"type": "external", "module": "minicloud_provider.MiniCloudNodeProvider"}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": "~/.ssh/id"}
    head = {"node_config": {}, "resources": {"CPU": 0}, "max_workers": 0}
    config["available_node_types"] = {"head": head, "gpu_spot": WORKER}
    config |= {"max_workers": 2, "idle_timeout_minutes": 0.5}
    config |= {"initialization_commands": [], "file_mounts_sync_continuously": False}  # `external` has no defaults
    *_, env, login = config["setup_commands"]  # what writes search.env, what makes shells read it
    assert "> ~/search.env" in env
    assert "bashrc" in login
    own = {"PYTHONPATH": "$HOME/project:$HOME/project/tests/cluster", "OMP_NUM_THREADS": 1, **S3}
    exports = f"'export {' '.join(f'{name}={value}' for name, value in own.items())}' > ~/search.env"
    env = env.replace("s3://SET-your-bucket/search", BUCKET).replace("> ~/search.env", exports)
    config["setup_commands"] = [env.replace("$HOME/venv/bin", str(Path(sys.executable).parent)), login]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        small = "ray start --object-store-memory=100000000"
        config[key] = [line.replace("ray start", small) for line in config[key]]
    return config


def workers() -> dict[str, Any]:
    """The running workers, by name."""
    nodes = call("ls").items()
    return {k: n for k, n in nodes if n["state"] == "running" and n["tags"].get("ray-node-type") == "worker"}


def journal_text() -> bytes:
    """The study's journal, which lies in the bucket in segments."""
    filesystem = fsspec.filesystem("s3", use_listings_cache=False)
    return fetch(filesystem, f"{BUCKET.removeprefix('s3://')}/{STUDY}") or b""


def journal() -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal_text().decode().splitlines()]


def sessions() -> int:
    return sum(event["e"] == "session" for event in journal())


def holding() -> list[str]:
    """Trials that run, have been evaluated and have a checkpoint to go on from."""
    events = journal()
    ended = {e["id"] for e in events if e["e"] == "end"}
    evaluated = dict.fromkeys(e["id"] for e in events if e["e"] == "eval")
    filesystem = fsspec.filesystem("s3", use_listings_cache=False)
    return [t for t in evaluated if t not in ended and filesystem.exists(f"{BUCKET}/{STUDY}/trials/{t}/last/state.pt")]


def confirming() -> list[str]:
    """Confirming trials among them."""
    confirmed = {e["id"] for e in journal() if e["e"] == "start" and e["stage"] == "confirm"}
    return [trial for trial in holding() if trial in confirmed]


def resumed() -> list[str]:
    """Trials that were evaluated again after their worker was lost, having started from a checkpoint."""
    events = journal()
    retried = {e["id"] for e in events if e["e"] == "retry"}
    return [e["id"] for e in events if e["e"] == "eval" and e["id"] in retried and e["resumed_from"] > 0]


def open_ports(address: str, ports: Iterable[int] = range(1, 65536)) -> list[int]:
    """The TCP ports of a host that answer."""
    found = []
    for port in ports:
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

    def search(kind: str, **asked: Any) -> Any:
        body = json.dumps({**asked, "max_results": 1000}).encode()
        address = f"{url}/api/2.0/mlflow/{kind}/search"
        with urllib.request.urlopen(
            urllib.request.Request(address, body, {"Content-Type": "application/json"}), timeout=30
        ) as answer:
            return json.load(answer)[kind]

    runs = search("runs", experiment_ids=[e["experiment_id"] for e in search("experiments")])
    return [{"status": r["info"]["status"], **{t["key"]: t["value"] for t in r["data"]["tags"]}} for r in runs]


class User:
    """Somebody at the laptop's shell. typed: every line; what a line prints goes to <name>.log."""

    def __init__(self, env: dict[str, str]) -> None:
        self.typed: list[str] = []
        self.env = env

    def start(self, name: str, line: str) -> subprocess.Popen[bytes]:
        self.typed.append(line)
        with (SHARED / f"{name}.log").open("ab") as output:
            words = ["bash", "-c", f"exec {line}"]
            return subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def run(self, name: str, line: str) -> int:
        return self.start(name, line).wait(STEP_S)


def printed(name: str) -> str:
    return (SHARED / f"{name}.log").read_text()


def main(repository: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    flow = Flow()
    project = Path.home() / "project"
    for part in ("search", "trainables", "analysis", "spaces", "tests/cluster"):
        shutil.copytree(repository / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "docs" / "examples" / "dcl.py", project)
    (project / "mine.yaml").write_text(SPACE)
    (project / CLUSTER).write_text(yaml.safe_dump(lab_file(repository)))
    os.chdir(project)
    user = User({**os.environ, "PYTHONPATH": f"{project}:{project}/tests/cluster"})
    os.environ |= S3
    with (SHARED / "s3.log").open("wb") as log:
        bucket = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", LAPTOP, "-p", "9000"], stderr=log)

    flow.note(token=user.run("token", "ray get-auth-token --generate") or user.run("token", f"chmod 600 {TOKEN}"))
    flow.wait("the S3 server", lambda: open_ports(LAPTOP, [9000]))
    fsspec.filesystem("s3").mkdir("bucket")
    shutil.copy(repository / "cluster.yaml", project / "shipped.yaml")
    flow.note(unfinished=user.run("unfinished", "search cluster check shipped.yaml"))
    flow.note(refused=user.run("refused", "search run mine.yaml --cluster shipped.yaml"))
    flow.note(checked=user.run("check", f"search cluster check {CLUSTER}"))
    flow.note(up=user.run("up", f"ray up -y {CLUSTER}"))
    assert flow.seen["up"] == 0, "see up.log"
    following = user.start("run", f"search run mine.yaml --smoke --name {STUDY} --cluster {CLUSTER}")
    head = find_head(CLUSTER)
    first = head.address
    flow.note(workers_before=len(workers()), open_ports=open_ports(head.address))
    with Tunnel(head, {DASHBOARD: 0}) as way:
        way.ensure()
        jobs = f"http://127.0.0.1:{way.ports[DASHBOARD]}/api/jobs/"
        flow.note(without_token=status_of(jobs), with_token=status_of(jobs, TOKEN.expanduser().read_text().strip()))
    running = following.poll  # None while it is
    flow.wait("two workers", lambda: len(workers()) == 2 or running() is not None)
    flow.wait("two trials that hold a checkpoint", lambda: len(holding()) == 2 or running() is not None)
    assert running() is None, "the search ended early, see run.log"
    flow.note(holding=holding(), workers=sorted(workers()), made=[node["made"] for node in workers().values()])
    victim = min(workers())
    call("preempt", name=victim)
    flow.note(preempted=victim)

    following.send_signal(signal.SIGINT)  # the user closes the laptop; the job goes on
    flow.note(left=following.wait(STEP_S))
    again = user.start("again", f"ray up -y {CLUSTER}")  # somebody else wants another version there
    following = user.start("follow", f"search follow --cluster {CLUSTER}")
    running = following.poll
    flow.wait("a trial resumed on another worker", lambda: resumed() or running() is not None)
    flow.note(again=again.wait(STEP_S))
    flow.note(stop=user.run("stop", f"search stop --cluster {CLUSTER}"))
    flow.note(followed=following.wait(STEP_S))
    flow.note(status=user.run("status", f"search status --cluster {CLUSTER}"))
    resuming = user.start("resume", f"search resume {STUDY} --cluster {CLUSTER}")
    flow.wait("the resumed session", lambda: sessions() == 2 or resuming.poll() is not None)
    flow.note(crashed=head.run(r"pkill -KILL -f '^[^ ]*python[0-9.]* -m search '"))  # as a head out of memory does
    flow.note(resumed=resuming.wait(STEP_S), sessions=sessions())
    following = user.start("confirm", f"search confirm {STUDY} --top 1 --seeds 1 --cluster {CLUSTER}")
    running = following.poll
    # One of them is enough: the other waits for its worker's process, perhaps until this one has ended.
    flow.wait("a confirming trial", lambda: confirming() or running() is not None)
    flow.note(confirming=confirming())
    assert flow.seen["confirming"], "the confirmation ended early, see confirm.log"
    lost = next(name for name, node in call("ls").items() if node["ip"] == first)
    flow.note(before_loss=journal(), orphans=sorted(workers()))
    call("terminate", name=lost)  # its disk goes with it: a new instance has an empty one
    flow.note(lost=lost)
    following.send_signal(signal.SIGINT)
    flow.note(left_lost=following.wait(STEP_S))
    config = yaml.safe_load(Path(CLUSTER).read_text())
    config["idle_timeout_minutes"] = 0.2  # nothing follows that would want these workers again
    Path(CLUSTER).write_text(yaml.safe_dump(config))
    flow.note(second_up=user.run("second-up", f"ray up -y {CLUSTER}"))
    assert flow.seen["second_up"] == 0, "see second-up.log"
    head = find_head(CLUSTER)
    # Until the lost head's last heartbeat is 45 seconds old its driver counts as running.
    flow.wait("MLflow filled", lambda: user.run("track", f"search track {STUDY} --cluster {CLUSTER}") == 0)
    flow.note(track=0)
    with Tunnel(head, {MLFLOW: 0}) as way:
        way.ensure()
        flow.note(heads=[first, head.address], rebuilt=mlflow_runs(f"http://127.0.0.1:{way.ports[MLFLOW]}"))
    flow.note(confirmed=user.run("second-resume", f"search resume {STUDY} --cluster {CLUSTER}"))

    pages = user.start("ui", f"search ui --cluster {CLUSTER}")
    flow.wait("the pages' addresses", lambda: "Ctrl-C ends this." in printed("ui") or pages.poll() is not None)
    found = re.search(r"^MLflow: +(http://127\.0\.0\.1:\d+)$", printed("ui"), re.MULTILINE)
    assert found, "see ui.log"
    user.env["MLFLOW_TRACKING_URI"] = found[1]
    flow.note(runs=mlflow_runs(found[1]), best=user.run("best", "analysis best --metric builtin_dev"))
    pages.send_signal(signal.SIGINT)
    flow.note(pages=pages.wait(STEP_S))
    flow.wait("no workers", lambda: not workers())
    flow.note(workers_after=len(workers()))
    flow.note(down=user.run("down", f"ray down -y {CLUSTER}"))
    nodes = call("ls").items()
    lived = {name: [round(node[key] - flow.seen["made"][0]) for key in ("made", "gone")] for name, node in nodes}
    flow.note(nodes={name: node["state"] for name, node in nodes}, lived=lived, typed=user.typed)
    (SHARED / "tracking.jsonl").write_bytes(journal_text())
    bucket.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
