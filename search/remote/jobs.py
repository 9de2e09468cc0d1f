"""`search run --cluster FILE`: the study runs as a Ray job on the cluster's head; this machine only follows it.

A job carries this project, the resolved space and the local files that the space names. Ray unpacks them on every node
and starts the driver and all trials in that folder, so a file has the same relative name everywhere. A file below the
current folder keeps its name; any other goes to `carried/`, which is also the job's SEARCH_DATA_DIR.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from search.remote.cluster import DASHBOARD, Head, Tunnel, find_head
from search.space import Space
from search.store.environment import environment
from search.store.layout import CLUSTER_FILE, UserError
from trainables.contract.errors import last_line
from trainables.contract.remote_code import USER_VARIABLE, mark_of, this_user, without_code

PACKAGES = ("search", "trainables", "analysis")
CARRIED = "carried"
LIMIT_MIB = 100  # Ray rejects larger job folders (HTTP 413)
RESERVED = [(name,) for name in (*PACKAGES, "space.yaml")] + [()]
SECRET = (".env", ".env.*", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "auth_token", ".ssh", ".aws", ".netrc")
WITHOUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".git", *SECRET)

POLL_S = 2.0  # between two connections to a job's log stream
PATIENCE_S = 300.0  # how long the head may be out of reach before following ends
COMMAND_S = 60.0  # limit for a command on the head
RESUMES, RESUME_S = 5, 10.0  # starts of a driver after crashes, and seconds before each
CRASHED = "134|135|136|137|139"  # bash's exit codes for SIGABRT, SIGBUS, SIGFPE, SIGKILL and SIGSEGV
STOP_S = 90  # seconds a stopped driver gets to pause its trials before Ray kills it
CHECKED = ("python", "ray", "torch", "transformers", "optuna", "mlflow", "contrastive-search")
VERSIONS_THERE = (
    "import json, platform; from importlib.metadata import distributions; "
    "found = {d.name.lower().replace('_', '-'): d.version for d in distributions()}; "
    "print(json.dumps(found | {'python': platform.python_version()}))"
)
# Where results go where the cluster's search.env sets nothing else; expanded by the shell on the head.
DEFAULTS = (
    'export SEARCH_STORAGE="${SEARCH_STORAGE:-$HOME/runs}" '
    'MLFLOW_TRACKING_URI="${MLFLOW_TRACKING_URI:-sqlite:///$HOME/search/mlflow.db}"; '
)
CHATTY = ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")  # loggers
FIRST_LINE = "Running entrypoint for job "  # Ray's own; the job's output comes after it
Say = Callable[[str], object]


def submit_and_follow(cluster: str, job: Job, say: Say, *, allow_mismatch: bool = False) -> int:
    """Submit a job and follow it to its end; the exit code for the command line. Ctrl-C leaves the job running.

    Raises: UserError before anything is submitted: no head, no token, other versions, files missing or too large.
    """
    head = find_head(cluster, versions=not allow_mismatch)
    check_versions(head, allow_mismatch, say)
    with Tunnel(head, {DASHBOARD: 0}) as way:
        name = submit(way, job)
        say(f"job {name} runs on cluster {head.name}; Ctrl-C leaves it running")
        return follow(way, name, say)


def follow_job(cluster: str, name: str | None, say: Say) -> int:
    """Follow a job (the newest one by default) from its first line on; its exit code as in `follow`."""
    with Tunnel(find_head(cluster), {DASHBOARD: 0}) as way:
        return follow(way, name or newest_job(way), say)


def stop_job(cluster: str, name: str | None) -> tuple[str, str]:
    """Pause the study of a running job: its trials save their state.

    Args: name: of the job or of its study; the newest running job by default.
    Returns: the names of the job and of its study, "" for a job that was started without one.
    Raises: UserError when there is no such job, or it has ended.
    """
    with Tunnel(find_head(cluster), {DASHBOARD: 0}) as way, _job_client(way) as client:
        jobs = [job for job in client.list_jobs() if job.submission_id]
        named = [job for job in jobs if name in (None, job.submission_id, _study_of(job))]
        running = [job for job in named if not job.status.is_terminal()]
        if name is None and not running:
            listing = f"`search list --cluster {shlex.quote(cluster)}` lists its studies"
            raise UserError(f"cluster {way.head.name}: no job runs there; {listing}")
        if not named:
            there = ", ".join(str(job.submission_id) for job in jobs if not job.status.is_terminal()) or "none"
            raise UserError(f"cluster {way.head.name}: no job or study {name!r}; running jobs: {there}")
        job = _newest(running or named)
        if not running or not client.stop_job(job.submission_id):
            study = f"{_study_of(job)} " if _study_of(job) else ""
            again = f"search resume {study}--cluster {shlex.quote(cluster)}"
            raise UserError(f"job {job.submission_id} has already ended; go on with `{again}`")
        return str(job.submission_id), _study_of(job)


def newest_job(way: Tunnel) -> str:
    """Name of the job that was submitted last.

    Raises: UserError when there is none.
    """
    with _job_client(way) as client:
        jobs = [job for job in client.list_jobs() if job.submission_id]
    if not jobs:
        raise UserError("no job was submitted to this cluster; start one with `search run SPACE.yaml --cluster FILE`")
    return str(_newest(jobs).submission_id)


def _newest(jobs: Sequence[Any]) -> Any:
    """The job that was submitted last."""
    return max(jobs, key=lambda job: job.start_time or 0)


def _study_of(job: Any) -> str:
    """The study's name in a job's details; "" for a job without one, such as `search resume` of the newest study."""
    return str((job.metadata or {}).get("study", ""))


def remote_command(cluster: str, words: Sequence[str]) -> int:
    """Run a quick `search` command on the head itself, with the project as `ray up` installed it; its exit code."""
    return find_head(cluster).run(f"{DEFAULTS}export {CLUSTER_FILE}={shlex.quote(cluster)}; search {shlex.join(words)}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A `search` command to run on the cluster.

    Attributes:
        verb: "run" | "resume" | "confirm".
        options: as typed.
        space: of a run, sent along.
        study: its name, or None: of a run the space's name with the time, else the newest study.
        carry: further local files the study reads.
    """

    verb: str
    options: Sequence[str] = ()
    space: Space | None = None
    study: str | None = None
    carry: Sequence[str] = ()


def submit(way: Tunnel, job: Job) -> str:
    """Send the job's files and start it; its name (Ray's submission id).

    Raises: UserError when a file cannot be sent or the cluster rejects the job.
    """
    stamp = datetime.now().strftime("%m%d-%H%M%S")
    study, name = job.study or "", f"{job.verb}-{job.study or 'newest'}-{stamp}"
    if job.space is not None and not job.study:
        study = f"{job.space.name}-{stamp}"
        name = f"run-{study}"
    named = ["space.yaml", "--name", study] if job.space is not None else [study] if study else []
    typed = [job.verb, *named, *job.options]
    entrypoint = supervised(typed, typed if job.verb == "confirm" else ["resume", *([study] if study else [])])
    with tempfile.TemporaryDirectory(prefix="search-job-") as folder, _job_client(way) as client:
        env = make_bundle(Path(folder), job.space, job.carry)
        env |= {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S), "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
        env |= {USER_VARIABLE: this_user()}  # not that of the head
        client.submit_job(
            entrypoint=f"bash -c {shlex.quote(entrypoint)}",
            submission_id=name,
            runtime_env={"working_dir": folder, "env_vars": env | {CLUSTER_FILE: way.head.config}},
            metadata={"study": study},
        )
    return name


def supervised(words: Sequence[str], again: Sequence[str]) -> str:
    """A bash script that runs `search WORDS` and, if a signal crashed it (a head out of memory), goes on with `search
    AGAIN`, RESUMES times at most. A stop request is passed on; its exit code is the driver's."""
    return (
        f"{DEFAULTS}trap : TERM INT; python -m search {shlex.join(words)}; code=$?; left={RESUMES}; "
        f"while [ $left -gt 0 ]; do case $code in {CRASHED}) ;; *) break;; esac; left=$((left - 1)); "
        f'echo "the driver crashed (exit code $code) and is started again"; sleep {RESUME_S:g}; '
        f"python -m search {shlex.join(again)}; code=$?; done; exit $code"
    )


def follow(way: Tunnel, name: str, say: Say) -> int:
    """Print a job's log as it is written until the job ends.

    Returns: the driver's exit code; 130 when the job was stopped or following was interrupted.
    Raises: UserError when there is no such job, or the head is out of reach for PATIENCE_S.
    """
    printer, lost, study = LogPrinter(say), 0.0, ""
    try:
        while True:
            try:
                with _job_client(way) as client:
                    study = _study_of(client.get_job_info(name))
                    lost = 0.0
                    asyncio.run(printer.follow(client.tail_job_logs(name)))
                    info = client.get_job_info(name)
                if info.status.is_terminal():
                    if printer.rest:
                        printer.print(printer.rest)
                    break
            except UserError as error:  # the tunnel broke, or the head
                if "does not exist" in str(error):
                    raise
                lost = lost or time.monotonic()
                if time.monotonic() - lost > PATIENCE_S:
                    again = f"follow again: search follow {name} --cluster {way.head.config}"
                    raise UserError(f"{error}; {again}") from error
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        cluster = f"--cluster {way.head.config}"
        say(f"\njob {name} goes on without this terminal.\n  follow:  search follow {name} {cluster}")
        say(f"  status:  search status {study} {cluster}\n  pause:   search stop {name} {cluster}")
        say(f"  resume:  search resume {study} {cluster}")
        return 130
    if info.status.value == "STOPPED":
        return 130
    if info.driver_exit_code is None and info.status.value == "FAILED":  # it never started, or its node crashed
        say(f"job {name} failed: {info.message}")
        return 1
    return int(info.driver_exit_code or 0)


class LogPrinter:
    """Prints a job's log in whole lines, each once, without Ray's first lines, which repeat the command.

    Ray's stream sends what is new, but begins again at the first line after the connection was lost.
    """

    def __init__(self, say: Say) -> None:
        self._say, self._lines, self._started = say, 0, False
        self.rest = ""  # of the last line, which has no end yet

    async def follow(self, stream: Any) -> None:
        """Print until the stream ends: with the job, or because the dashboard lost its connection to it."""
        received, self.rest = 0, ""
        async for text in stream:
            *whole, self.rest = (self.rest + text).split("\n")
            for line in whole[max(0, self._lines - received) :]:
                self.print(line)
            received += len(whole)
            self._lines = max(self._lines, received)

    def print(self, line: str) -> None:
        if self._started:
            self._say(line)
        self._started = self._started or line.startswith(FIRST_LINE)


def check_versions(head: Head, allow: bool, say: Say) -> None:
    """Compare what this machine and the head have installed.

    Raises: UserError naming every package that differs, unless `allow`: then it is a warning.
    """
    try:
        command = head.shell(f"python -c {shlex.quote(VERSIONS_THERE)}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"cluster {head.name}: head {head.address} did not answer in {COMMAND_S:g} s") from None
    if done.returncode:
        why = last_line(done.stderr.strip() or f"exit code {done.returncode}")
        raise UserError(f"cluster {head.name}: head {head.address}: {why}")
    there = json.loads(done.stdout.splitlines()[-1])
    differing = mismatches(environment()["versions"], there)
    if not differing:
        return
    text = f"cluster {head.name} differs from this machine: {'; '.join(differing)}"
    if not allow:
        raise UserError(
            f'{text}. Here run `pip install -c cluster.lock -e ".[cluster]"`; if the cluster is the older one, '
            f"`ray up {head.config}` when no study runs; or pass --allow-mismatch"
        )
    say(text)


def mismatches(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> list[str]:
    """`ray: 2.60.0 here, 2.59.1 there` for each package that differs; of Python the minor version counts.

    Build tags (`2.13.0+cpu`) are no difference: laptops have no GPU.
    """
    lines = []
    for name in CHECKED:
        ours, theirs = here.get(name) or "not installed", there.get(name) or "not installed"
        parts = 2 if name == "python" else None
        if ours.partition("+")[0].split(".")[:parts] != theirs.partition("+")[0].split(".")[:parts]:
            lines.append(f"{name}: {ours} here, {theirs} there")
    return lines


@contextmanager
def _job_client(way: Tunnel) -> Iterator[Any]:
    """Ray's job client through a tunnel; what it raises, as a UserError."""
    from ray.job_submission import JobSubmissionClient

    for chatty in CHATTY:
        logging.getLogger(f"ray.{chatty}").setLevel(logging.WARNING)
    try:
        way.ensure()
        yield JobSubmissionClient(f"http://127.0.0.1:{way.ports[DASHBOARD]}")
    except UserError:
        raise
    except (OSError, RuntimeError, aiohttp.ClientError) as error:  # the HTTP library's errors are OSErrors
        raise UserError(f"cluster {way.head.name}: {last_line(error)}") from error


def make_bundle(target: Path, space: Space | None, carry: Sequence[str] = ()) -> dict[str, str]:
    """Fill `target` (an empty folder) and return environment variables that the job needs for it.

    Args:
        space: goes to `target/space.yaml`, resolved, its local files named as they are in the bundle.
        carry: further files or folders, such as data that a resumed study needs.
    Raises: UserError when a file is missing, two files would get one name, or all is larger than Ray takes.
    """
    for package in PACKAGES:
        shutil.copytree(Path(__file__).parents[2] / package, target / package, ignore=WITHOUT)
    paths = [Path(given).expanduser() for given in carry]
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"--carry {missing[0]}: no such file or folder (searched {missing[0].absolute().parent})")
    if secret := [path for path in paths if any(fnmatch.fnmatch(path.name, pattern) for pattern in SECRET)]:
        raise UserError(f"--carry {secret[0]}: looks like a key or a password; such files do not travel to nodes")
    wanted = [(path, bundled_name(path)) for path in paths]
    if space is not None:
        local = local_files(space)
        wanted += [(path, there) for _, path, there in local]
        renamed = _renamed(space, {name for name, *_ in local if name})
        (target / "space.yaml").write_text(renamed.to_yaml(), encoding="utf-8")
    names: dict[str, Path] = {}
    for path, name in wanted:
        if names.setdefault(name, path).absolute() != path.absolute():
            raise UserError(f"{path} and {names[name]} would both be {name} on the cluster; rename one")
    for name, path in names.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(path, target / name, ignore=WITHOUT) if path.is_dir() else shutil.copyfile(path, target / name)
    _check_size(target, names)
    return {"SEARCH_DATA_DIR": CARRIED} if (target / CARRIED).is_dir() else {}


def bundled_name(path: Path) -> str:
    """What a local file is called in the bundle. A placeholder such as `{split}` in its name stays."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    if absolute.is_relative_to(here) and (name := absolute.relative_to(here)).parts[:1] not in RESERVED:
        return name.as_posix()
    return f"{CARRIED}/{absolute.name}"


def local_files(space: Space) -> list[tuple[str, Path, str]]:
    """(name in the space, file or folder of this machine that it means, name in the bundle).

    What is missing here may lie on the cluster's nodes; the driver there checks it before it starts.
    """
    from trainables.data.catalogue import find_local, is_path, train_parts
    from trainables.data.files import matching

    data, found = space.data, []
    train = [(name, "train") for name in train_parts(data.train)]
    for name, split in [*train, *((dev, split) for dev in data.dev for split in ("dev", "test"))]:
        path = Path(name.replace("{split}", split)).expanduser()
        if is_path(name):
            found += [(name, file, bundled_name(file)) for file in ([path] if path.is_dir() else matching(path))]
        elif name and (source := find_local(name, data.language, split)):  # a named set in SEARCH_DATA_DIR
            found.append(("", source.path, f"{CARRIED}/{source.path.name}"))
    for entry in (without_code(space.encoder), data.parser, *(data.evaluations or {}).values()):
        if entry and not entry.startswith("builtin") and (path := Path(entry).expanduser()).exists():
            found.append((entry, path, bundled_name(path)))
    return found


def _renamed(space: Space, local: Set[str]) -> Space:
    """The space with its local files under the names that they have in the bundle."""
    from trainables.data.catalogue import is_path, train_parts

    def there(name: Any) -> Any:
        if name not in local:
            return name
        moved = bundled_name(Path(name).expanduser())
        return moved if is_path(moved) else f"./{moved}"  # a folder without a slash would be a set's name

    data = space.data
    moved = replace(
        data,
        train="+".join(map(there, train_parts(data.train))),
        dev=tuple(map(there, data.dev)),
        columns={there(name): of_it for name, of_it in data.columns.items()} if data.columns else None,
        parser=there(data.parser),
        evaluations={key: there(file) for key, file in data.evaluations.items()} if data.evaluations else None,
    )
    encoder = without_code(space.encoder)
    return replace(space, data=moved, encoder=there(encoder) + mark_of(space.encoder))


def _check_size(target: Path, names: Mapping[str, Path]) -> None:
    def mib(path: Path) -> float:
        return sum(p.stat().st_size for p in (path, *path.rglob("*")) if p.is_file()) / 2**20

    if (total := mib(target)) > LIMIT_MIB:
        size, largest = max((mib(target / name), name) for name in names)  # there is one: the project alone is small
        raise UserError(
            f"a job carries at most {LIMIT_MIB} MiB, got {total:.0f} MiB; the largest: {largest} ({size:.0f} MiB). "
            "List it under file_mounts in the cluster file, and start the search on the head (docs/cluster.md)"
        )
