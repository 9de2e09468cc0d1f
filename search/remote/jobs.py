"""`search run --cluster FILE`: the study runs as a Ray job on the cluster's head, this machine only follows.

The job's folder holds the project, the resolved space and the local data (`bundle.py`); everything goes through one ssh
tunnel (`tunnel.py`). The job is followed by asking for its status and log again and again: Ray's log socket drops with
the tunnel, and the job does not care.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from search.remote.bundle import make_bundle
from search.remote.cluster_file import refuse_unfinished
from search.remote.tunnel import DASHBOARD, Head, Tunnel, find_head, tunnel
from search.space import Space
from search.store.environment import environment
from search.store.layout import CLUSTER_FILE, UserError
from trainables.contract.errors import last_line

POLL_S = 2.0  # seconds between two looks at a job
PATIENCE_S = 300.0  # how long the head may be out of reach before following ends
STOP_S = 90  # seconds a stopped driver gets to pause its trials before Ray kills it
CHECKED = ("python", "ray", "torch", "transformers", "optuna", "mlflow", "contrastive-search")
# Where results go unless the cluster's search.env says otherwise; expanded by the shell on the head.
DEFAULTS = (
    'export SEARCH_STORAGE="${SEARCH_STORAGE:-$HOME/runs}" '
    'MLFLOW_TRACKING_URI="${MLFLOW_TRACKING_URI:-sqlite:///$HOME/search/mlflow.db}"; '
)
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to run on the cluster.

    Attributes:
        verb: "run" | "resume" | "confirm".
        arguments: of the command besides --storage; a run's space is sent along and needs none.
        study: its name, or None for the newest one.
        storage: where results go, None = SEARCH_STORAGE of the head.
        carry: further local files the study reads.
    """

    verb: str
    arguments: Sequence[str] = ()
    space: Space | None = None
    study: str | None = None
    storage: str | None = None
    carry: Sequence[str] = ()


def submit_and_follow(cluster: str, job: Job, say: Say, *, allow_mismatch: bool = False) -> int:
    """Submit a job and follow it to its end; the exit code for the command line.

    Ctrl-C leaves the job running and says how to go on.

    Raises: UserError before anything is submitted: no head, no token, other versions, files missing or too large.
    """
    refuse_unfinished(cluster, versions=not allow_mismatch)
    head = find_head(cluster)
    check_versions(head, allow_mismatch, say)
    with tunnel(head, DASHBOARD) as way:
        name = submit(way, job)
        say(f"job {name} runs on cluster {head.name}; Ctrl-C leaves it running")
        return follow(way, name, say)


def follow_job(cluster: str, name: str | None, say: Say) -> int:
    """Follow a job (the newest one by default) from its first line on; its exit code as in `follow`."""
    with tunnel(find_head(cluster), DASHBOARD) as way, _explained(way):
        return follow(way, name or newest_job(_client(way)), say)


def stop_job(cluster: str, name: str | None) -> str:
    """Pause the study of a running job (the newest by default): its trials save their state. Returns the job's name."""
    with tunnel(find_head(cluster), DASHBOARD) as way, _explained(way):
        client = _client(way)
        name = name or newest_job(client)
        try:
            client.stop_job(name)
        except RuntimeError as error:
            raise UserError(f"job {name}: {last_line(error)}") from error
        return name


def remote_command(cluster: str, command: str, arguments: Sequence[str]) -> int:
    """Run a quick `search` command on the head itself, with the project as `ray up` installed it; its exit code."""
    line = f"{DEFAULTS}export {CLUSTER_FILE}={shlex.quote(cluster)}; search {command}"
    if "--storage" not in arguments:
        line += ' --storage "$SEARCH_STORAGE"'
    code = find_head(cluster).run(f"{line} {shlex.join(arguments)}")
    if code == 255:
        raise UserError(f"--cluster {cluster}: ssh to the head failed")
    return code


def submit(way: Tunnel, job: Job) -> str:
    """Send the bundle and start the job; its name (Ray's submission id).

    Raises: UserError when the bundle cannot be made or the cluster refuses it.
    """
    stamp = datetime.now().strftime("%m%d-%H%M%S")
    study = job.study
    arguments = [*job.arguments]
    if job.space is not None:
        study = study or f"{job.space.name}-{stamp}"
        arguments = ["space.yaml", "--name", study, *arguments]
    elif study is not None:
        arguments = [study, *arguments]
    storage = shlex.quote(job.storage) if job.storage else '"$SEARCH_STORAGE"'
    entrypoint = f"{DEFAULTS}exec python -m search {job.verb} {shlex.join(arguments)} --storage {storage}"
    name = f"{job.verb}-{study or 'newest'}-{stamp}" if job.verb != "run" or job.study else f"run-{study}"
    with tempfile.TemporaryDirectory(prefix="search-job-") as folder, _explained(way):
        env = make_bundle(Path(folder), job.space, job.carry)
        env |= {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S), "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
        env[CLUSTER_FILE] = str(way.head.config)
        _client(way).submit_job(
            entrypoint=f"bash -c {shlex.quote(entrypoint)}",
            submission_id=name,
            runtime_env={"working_dir": folder, "env_vars": env},
            metadata={"study": study or ""},
        )
    return name


def follow(way: Tunnel, name: str, say: Say) -> int:
    """Print a job's log as it grows until the job ends.

    Returns: the driver's exit code; 130 when the job was stopped or following was interrupted.
    Raises: UserError when there is no such job, or the head is out of reach for PATIENCE_S.
    """
    cluster, said, lost, study = way.head.config, 0, 0.0, ""
    try:
        while True:
            try:
                way.ensure()
                client = _client(way)
                info = client.get_job_info(name)  # before the log, which then is the whole one
                study = (info.metadata or {}).get("study", "")
                log = own_output(client.get_job_logs(name))
                lost = 0.0
            except (OSError, RuntimeError, UserError) as error:  # the HTTP library's errors are OSErrors
                if "does not exist" in str(error):
                    raise UserError(f"cluster {way.head.name}: no job {name}: {last_line(error)}") from error
                lost = lost or time.monotonic()
                if time.monotonic() - lost > PATIENCE_S:
                    raise UserError(
                        f"{last_line(error)}; follow again: search follow {name} --cluster {cluster}"
                    ) from error
                time.sleep(POLL_S)
                continue
            ended = info.status.is_terminal()
            whole = len(log) if ended else log.rfind("\n") + 1
            if whole > said:
                say(log[said:whole].rstrip("\n"))
                said = whole
            if ended:
                return exit_code(info, say)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        say(farewell(name, str(cluster), study))
        return 130


def own_output(log: str) -> str:
    """A job's log without Ray's first lines, which repeat the command."""
    if not (found := re.search(r"^Running entrypoint for job .*\n", log, re.MULTILINE)):
        return ""
    return log[found.end() :]


def exit_code(info: Any, say: Say) -> int:
    """Exit code of an ended job (Ray's JobDetails)."""
    if info.status.value == "STOPPED":
        return 130
    if info.driver_exit_code is not None:
        return int(info.driver_exit_code)
    if info.status.value == "FAILED":  # the driver never started, or its node died
        say(f"job {info.submission_id} failed: {info.message}")
        return 1
    return 0


def farewell(job: str, cluster: str, study: str) -> str:
    """What somebody who leaves a running job needs to know."""
    return (
        f"\njob {job} goes on without this terminal.\n"
        f"  follow:  search follow {job} --cluster {cluster}\n"
        f"  look:    search status {study} --cluster {cluster}\n"
        f"  pause:   search stop {job} --cluster {cluster}\n"
        f"  resume:  search resume {study} --cluster {cluster}"
    )


def newest_job(client: Any) -> str:
    """Name of the job that was submitted last.

    Raises: UserError when there is none.
    """
    jobs = [job for job in client.list_jobs() if job.submission_id]
    if not jobs:
        raise UserError("no job was submitted to this cluster; start one with `search run SPACE.yaml --cluster FILE`")
    return str(max(jobs, key=lambda job: job.start_time or 0).submission_id)


def check_versions(head: Head, allow: bool, say: Say) -> None:
    """Compare what this machine and the head have installed.

    Raises: UserError naming every package that differs, unless `allow`: then it is only said.
    """
    code = (
        "import json, platform\n"
        "from importlib import metadata\n"
        "def version(name):\n"
        "    try: return metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: return None\n"
        f"print(json.dumps({{'python': platform.python_version(), **{{n: version(n) for n in {CHECKED[1:]!r}}}}}))"
    )
    there = json.loads(head.output(f"python -c {shlex.quote(code)}").splitlines()[-1])
    differing = mismatches(environment()["versions"], there)
    if not differing:
        return
    text = f"cluster {head.name} differs from this machine: {'; '.join(differing)}"
    if not allow:
        raise UserError(f"{text}. Run `ray up {head.config}` to update it when no study runs, or pass --allow-mismatch")
    say(text)


def mismatches(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> list[str]:
    """`ray: 2.60.0 here, 2.59.1 there` for each package that differs; of Python the minor version counts.

    Build tags (`2.13.0+cpu`) are no difference: laptops have no GPU.
    """

    def plain(name: str, version: str | None) -> str | None:
        if version is None:
            return None
        return ".".join(version.split(".")[:2]) if name == "python" else version.partition("+")[0]

    return [
        f"{name}: {here.get(name) or 'not installed'} here, {there.get(name) or 'not installed'} there"
        for name in CHECKED
        if plain(name, here.get(name)) != plain(name, there.get(name))
    ]


def _client(way: Tunnel) -> Any:
    from ray.job_submission import JobSubmissionClient

    for chatty in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(chatty).setLevel(logging.WARNING)  # they tell of every upload
    return JobSubmissionClient(f"http://127.0.0.1:{way.ports[DASHBOARD]}")


@contextmanager
def _explained(way: Tunnel) -> Iterator[None]:
    """What Ray's client raises, as one line."""
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError) as error:
        raise UserError(f"cluster {way.head.name}: {last_line(error)}") from error
