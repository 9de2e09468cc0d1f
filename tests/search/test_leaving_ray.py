"""The end of a private Ray: what Tune has left behind does not take the driver with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

GARBAGE = """
import gc
from search.running.ray_session import ray_session
from search.space import Resources

class Closing:
    "Ray's connection, with a garbage collection in the moment between its end and Ray's forgetting it."
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def shutdown_driver(self):
        self.real.shutdown_driver()
        gc.collect()

with ray_session(None, Resources(gpus=0, cpus=1, workers=1), 1):
    import ray
    from ray._private.worker import global_worker

    gc.disable()  # only where it does harm
    cycle = [ray.put(1)]
    cycle.append(cycle)
    del cycle
    global_worker.core_worker = Closing(global_worker.core_worker)
print("left")
"""


@pytest.mark.ray
def test_references_in_cycles_do_not_end_the_driver() -> None:
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
