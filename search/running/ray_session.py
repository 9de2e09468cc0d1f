"""The Ray that trials run on: a private one that ends with the search, or a cluster that is there already."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from search.errors import UserError
from search.space import Resources

CAPACITY_S = 5.0  # seconds between two looks at a cluster's size


@contextmanager
def ray_session(
    address: str | None, resources: Resources, concurrent: int | None
) -> Iterator[tuple[Callable[[], int], Resources]]:
    """Connect to `address` (or RAY_ADDRESS), or start a private Ray on this machine; shut it down at the end.

    Yields: a function that says how many trials can run at once now, and the resources with `gpus` decided. An
        autoscaling cluster grows only while a trial waits, so there it is one more than fit, or `concurrent` where
        given.
    Raises: UserError when a trial needs more than this machine has, or the cluster cannot be reached.
    """
    import ray

    from search import tuner  # noqa: F401  # sets Ray's environment before ray is imported

    # Tune would start trial processes one after another; a cluster grows by what waits. `capacity` says how many may.
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "1000")
    if ray.is_initialized():
        known = decided(resources, ray.cluster_resources(), grows=False)
        yield (lambda: min(fitting(known, ray.cluster_resources()), concurrent or 2**31)), known
        return
    address = address or os.environ.get("RAY_ADDRESS")
    scratch = None if address else tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: it holds sockets
    try:
        if address:
            _connect(address)
        else:
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=256 * 2**20,  # trials exchange a few numbers
                _temp_dir=scratch,
            )
        known = decided(resources, ray.cluster_resources(), grows=bool(address))
        yield _Capacity(known, concurrent, grows=bool(address)), known
    finally:
        ray.shutdown()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _connect(address: str) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, TimeoutError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"Ray cluster {address}: cannot be reached: {line}") from error


def decided(resources: Resources, there: dict[str, float], grows: bool) -> Resources:
    """`gpus: null` as a number: 1 where there are GPUs, or on a cluster that may still start nodes that have them."""
    if resources.gpus is not None:
        return resources
    return replace(resources, gpus=1.0 if grows or there.get("GPU", 0.0) else 0.0)


def gpus_now() -> float:
    """GPUs of the connected cluster's live nodes."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


class _Capacity:
    """How many trials can run at once, looked at every few seconds."""

    def __init__(self, resources: Resources, concurrent: int | None, grows: bool) -> None:
        self._resources, self._concurrent, self._grows = resources, concurrent, grows
        self._value, self._looked = 0, -math.inf
        if not grows and self() == 0:
            import ray

            there = ray.cluster_resources()
            raise UserError(
                f"resources: a trial needs {resources.workers} x ({resources.cpus:g} CPUs, {resources.gpus:g} GPUs); "
                f"this machine has {there.get('CPU', 0):g} CPUs, {there.get('GPU', 0):g} GPUs"
            )

    def __call__(self) -> int:
        if time.monotonic() - self._looked >= CAPACITY_S:
            import ray

            fit = fitting(self._resources, ray.cluster_resources())
            if self._grows:
                self._value = self._concurrent or fit + 1
            else:
                self._value = min(fit, self._concurrent or fit)
            self._looked = time.monotonic()
        return self._value


def fitting(resources: Resources, there: dict[str, float]) -> int:
    """How many trials fit into a cluster's resources. Several fit on a GPU, none across two machines' halves of one."""
    counts = [there.get("CPU", 0.0) / (resources.cpus * resources.workers)]
    if resources.gpus:  # decided
        per_gpu = math.floor(1 / resources.gpus + 1e-9) if resources.gpus < 1 else 1 / resources.gpus
        counts.append(there.get("GPU", 0.0) * per_gpu / resources.workers)
    return math.floor(min(counts) + 1e-9)
