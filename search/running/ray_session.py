"""The Ray that trials run on: a private one that ends with the search, or a cluster that is there already."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import yaml

from search.running.private_ray import LOOPBACK, job_config, leave_ray, private_ray, signal_handlers_restored
from search.space import Resources
from search.store.layout import UserError, is_remote
from trainables.contract.errors import first_line, storage_line

HEAD_S = 5.0  # how long a cluster's head may take to answer
PROBE_S = 30.0  # how long a node may take to write the storage
PROBE = ".probe-"  # begins the names of files that are written to try a storage
CAPACITY_S = 5.0  # seconds between two queries of a cluster's size
BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")  # the cluster file as `ray up` leaves it on the head
# Tune's own output, loggers, snapshots and signal handler are off; ours take their place.
ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial's last result has no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # the journal is what a study is resumed from
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    # Tune would start trial processes one after another; a cluster grows by what waits. `capacity` limits them.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",
}


@contextmanager
def ray_session(
    address: str | None, resources: Resources, concurrent: int | None
) -> Iterator[tuple[Callable[[Resources], int], Resources]]:
    """Connect to `address` (or RAY_ADDRESS), or start a private Ray on this machine; shut it down at the end.

    ENVIRONMENT is set inside the `with` block: ray.tune is first imported there.

    Yields: a function that returns how many trials of given resources can run at once now, and the resources with
        `gpus` decided. An autoscaling cluster grows by the trials that wait, so there it is what fits into its
        largest size (one more than fits now if its file is not available), or `concurrent` where given.
    Raises: UserError when a trial needs more than this machine has, the cluster cannot be reached, or this process is
        connected to another Ray than `address`.
    """
    given, address = address, address or os.environ.get("RAY_ADDRESS")
    with _environment(ENVIRONMENT if address else ENVIRONMENT | LOOPBACK):
        import ray

        if ray.is_initialized():
            if given:
                check_connection(given)
            known = decided(resources, ray.cluster_resources(), grows=False)
            yield _Capacity(known, concurrent, grows=False), known
            return
        with _cluster(address) if address else private_ray():
            growing = bool(address) and may_grow() and autoscaled()
            known = decided(resources, ray.cluster_resources(), grows=growing)
            yield _Capacity(known, concurrent, grows=growing), known


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These environment variables, where they are not set already, inside the `with` block."""
    added = variables.keys() - os.environ.keys()
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    import ray

    check_head(address)
    try:
        with signal_handlers_restored():
            config = (
                None if address.startswith("ray://") else job_config(private=False)
            )  # a client's driver is on the head
            ray.init(address=address, job_config=config, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds: no head, another version, no token or another one
        raise UserError(f"Ray cluster {address}: {_unconnected(error)}") from error
    try:
        yield
    finally:
        leave_ray()


def _unconnected(error: Exception) -> str:
    """Why Ray has not connected to a cluster, and what to do about its token."""
    import ray.exceptions

    if os.environ.get("RAY_AUTH_MODE") != "token":  # Ray sends no token then
        return f"cannot be reached: {first_line(error)} (if the head requires a token: set RAY_AUTH_MODE=token)"
    if isinstance(error, ray.exceptions.AuthenticationError):
        why = "RAY_AUTH_MODE=token, but this machine has no token, or not the head's"
        return f"{why}: copy the head's ~/.ray/auth_token, or set RAY_AUTH_TOKEN"
    why = "if the head runs, its token differs from this machine's: compare ~/.ray/auth_token"
    return f"cannot be reached: {first_line(error)} ({why})"


def check_head(address: str) -> None:
    """Whether something listens at `host:port`: Ray itself would ask a dead head for minutes.

    Raises: UserError when nothing does; "auto" and other forms are Ray's to find.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=HEAD_S).close()
    except OSError as error:
        raise UserError(f"Ray cluster {address}: cannot be reached: {error.strerror or error}") from error


def connected() -> bool:
    """Whether this process is connected to a Ray already, as a notebook after `ray.init()`. Does not import Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_connection(address: str) -> None:
    """Whether the Ray that this process is connected to is the one at `address`.

    Raises: UserError when it is another one. Ray's client does not give its address: nothing is raised then.
    """
    import ray

    def place(text: str) -> tuple[str, str]:
        host, _, port = text.removeprefix("ray://").rpartition(":")
        with contextlib.suppress(OSError):
            host = socket.gethostbyname(host) if host else ""
        return ray.util.get_node_ip_address() if host.startswith("127.") else host, port

    try:
        now = str(ray.get_runtime_context().gcs_address)
    except Exception:
        return
    (host, port), (wanted, of_gcs) = place(now), place(address)
    if address != "auto" and (host != wanted or (port != of_gcs and not address.startswith("ray://"))):
        raise UserError(
            f"Ray cluster {address}: this process is connected to the Ray at {now}; call `ray.shutdown()` first, or "
            "leave out the address to use that Ray"
        )


def may_grow(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a cluster may still get nodes: what SLURM has allocated to a job stays as it is."""
    return "SLURM_JOB_ID" not in environ


def autoscaled() -> bool:
    """Whether an autoscaler made any of the connected cluster's nodes, which then have a type (true where Ray cannot
    say). One that was started manually does not grow: a trial that waits for a GPU waits forever."""
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    try:
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
    except Exception:  # an older head, or Ray's client
        return True
    nodes = [*status.active_nodes, *status.idle_nodes]
    return any(node.ray_node_type_name != f"node_{node.node_id}" for node in nodes)


def decided(resources: Resources, there: dict[str, float], grows: bool) -> Resources:
    """`gpus: null` as a number: 1 where there are GPUs, or on a cluster that may still start nodes that have them."""
    if resources.gpus is not None:
        return resources
    return replace(resources, gpus=1.0 if grows or there.get("GPU", 0.0) else 0.0)


def nodes_now() -> list[Mapping[str, float]]:
    """Resources of each live node of the connected cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def gpus_now() -> float:
    """GPUs of the connected cluster's live nodes."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


def at_largest(resources: Resources, file: Path = BOOTSTRAP) -> int | None:
    """How many trials fit into the connected cluster with all the nodes that its file allows.

    Nodes take minutes to start: eight requested one after another take eight times as long as eight requested at once.

    Returns: None where this machine is not the head of a `ray up`, or the file does not list a node's resources.
    """
    try:
        config = yaml.safe_load(file.expanduser().read_text(encoding="utf-8"))
    except OSError:
        return None
    share, head, left = replace(resources, workers=1), config["head_node_type"], int(config["max_workers"])
    found = []
    for name, kind in config["available_node_types"].items():
        count = 1 if name == head else int(kind.get("max_workers", left))
        if count and not kind.get("resources"):
            return None
        found.append((fitting(share, kind["resources"]) if count else 0, count, name == head))
    processes = 0
    for fit, count, is_head in sorted(found, reverse=True):
        started = count if is_head else min(count, left)
        left -= 0 if is_head else started
        processes += fit * started
    return processes // resources.workers


def ever_fits(resources: Resources) -> bool:
    """Whether a trial with these resources fits into the connected cluster, or into nodes that it may still start."""
    import ray

    one = replace(resources, workers=1)
    processes = sum(fitting(one, node["Resources"]) for node in ray.nodes() if node["Alive"])
    return processes >= resources.workers or (may_grow() and autoscaled() and at_largest(resources) != 0)


def check_storage(storage: str) -> None:
    """Every live node with CPUs can write the storage of the studies: trials have their node's environment, not that of
    this shell. With several nodes, a folder must be the driver's on each of them.

    Raises: UserError naming a node that cannot. Nothing is raised for a node without an answer within PROBE_S.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if is_remote(storage):
        _probe(storage, "", nodes)
    elif len(nodes) > 1:
        ours = Path(storage) / f"{PROBE}{uuid4().hex}"
        try:
            ours.touch()
        except OSError as error:
            raise UserError(f"storage {storage}: cannot be written: {error.strerror or error}") from error
        try:
            _probe(storage, ours.name, nodes)
        finally:
            ours.unlink(missing_ok=True)


def _probe(storage: str, ours: str, nodes: Sequence[Mapping[str, Any]]) -> None:
    """`storage_problem` on every node with CPUs. Raises: UserError with the first problem."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0, max_retries=0)(storage_problem)
    asked = {}
    for node in nodes:
        if node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[probe.options(scheduling_strategy=there).remote(storage, ours)] = node["NodeManagerHostname"]
    answered, silent = ray.wait([*asked], num_returns=len(asked), timeout=PROBE_S) if asked else ([], [])
    for answer in silent:
        ray.cancel(answer, force=True)
    for answer in answered:
        with contextlib.suppress(ray.exceptions.RayError):  # such as a node that lacks this package
            if problem := ray.get(answer):
                raise UserError(f"node {asked[answer]}: {problem}")


def storage_problem(storage: str, ours: str = "") -> str:
    """Find the driver's file `ours`, if there is one, write a small object and delete it.

    Returns: what prevented it, one line, else "".
    """
    try:
        filesystem, path = fsspec.core.url_to_fs(f"{storage}/{PROBE}{uuid4().hex}")
        if ours and not filesystem.exists(f"{storage}/{ours}"):
            return f"storage {storage}: not the driver's folder; give a --storage that all nodes reach"
        filesystem.pipe_file(path, b"x")
        filesystem.rm_file(path)
    except Exception as error:  # stores raise what they like
        return storage_line(error, storage) or f"storage {storage}: {type(error).__name__}: {first_line(error)}"
    return ""


class _Capacity:
    """How many trials can run at once, updated every few seconds."""

    def __init__(self, resources: Resources, concurrent: int | None, grows: bool) -> None:
        self._resources, self._concurrent, self._grows = resources, concurrent, grows
        self._value, self._updated = 0, -math.inf
        if not grows and self() == 0:
            import ray

            there = ray.cluster_resources()
            raise UserError(
                f"resources: a trial needs {resources.workers} x ({resources.cpus:g} CPUs, {resources.gpus:g} GPUs); "
                f"there are {there.get('CPU', 0):g} CPUs, {there.get('GPU', 0):g} GPUs"
            )

    def __call__(self, resources: Resources | None = None) -> int:
        """Args: resources: of a trial from now on; None = as before."""
        if time.monotonic() - self._updated >= CAPACITY_S or resources not in (None, self._resources):
            self._resources = resources or self._resources
            import ray

            fit = fitting(self._resources, ray.cluster_resources())
            if self._grows:
                self._value = self._concurrent or max(fit, at_largest(self._resources) or fit + 1)
            else:
                self._value = min(fit, self._concurrent or fit)
            self._updated = time.monotonic()
        return self._value


def fitting(resources: Resources, there: dict[str, float]) -> int:
    """How many trials fit into a cluster's resources. Several may share a GPU; none combines parts of two GPUs."""
    counts: list[float] = [there.get("CPU", 0.0) / (resources.cpus * resources.workers)]
    if resources.gpus:  # decided
        per_gpu = math.floor(1 / resources.gpus + 1e-9) if resources.gpus < 1 else 1 / resources.gpus
        counts.append(there.get("GPU", 0.0) * per_gpu / resources.workers)
    return math.floor(min(counts) + 1e-9)
