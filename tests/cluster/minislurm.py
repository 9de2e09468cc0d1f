"""SLURM on loopback: munged, slurmctld and one slurmd per node as children of this process, in a folder of their own.

Nodes share this machine's network and files, which is what a cluster's shared file system looks like from a job. What a
real cluster adds, cgroups and a network between nodes, is not here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""  # cred_expire: a requeued job waits so long; AuthInfo's default is two minutes


def missing() -> str:
    """What this machine lacks to run it, "" where nothing."""
    if os.geteuid() != 0:
        return "not root"
    lacking = [name for name in PROGRAMS if not shutil.which(name)]
    return f"not installed: {' '.join(lacking)}" if lacking else ""


@contextmanager
def slurm(nodes: int) -> Iterator[dict[str, str]]:
    """SLURM with idle nodes n1, n2, ... of one CPU; yields the environment in which its commands find it.

    Raises: TimeoutError when the nodes are not idle in half a minute, with the daemons' last words.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)  # short: it holds sockets
        (folder / "state").mkdir()
        (folder / "munge").mkdir(mode=0o700)
        (folder / "munge" / "key").write_bytes(os.urandom(64))
        (folder / "munge" / "key").chmod(0o600)
        ports, host = free_ports(nodes + 1), socket.gethostname().split(".")[0]
        lines = [
            f"NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[n]} CPUs=1" for n in range(1, nodes + 1)
        ]
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(host=host, ports=ports, folder=folder, nodes="\n".join(lines)))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "RAY_"))}
        env["SLURM_CONF"] = str(config)
        munge = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "log", "pid", "seed")]
        munge.append(f"--socket={folder}/munge/socket")
        commands = [["munged", "--force", "--foreground", *munge], ["slurmctld", "-D", "-c"]]
        commands += [["slurmd", "-D", "-N", f"n{n}"] for n in range(1, nodes + 1)]
        daemons = []
        try:
            for command in commands:
                with (folder / "log").open("ab") as log:
                    daemons.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
                if command[0] == "munged":
                    wait_for("munged", (folder / "munge" / "socket").exists, folder / "log")
            wait_for("idle nodes", lambda: states(env).count("idle") == nodes, folder / "log")
            yield env
        finally:
            subprocess.run(["scancel", "--user=root", "--full"], env=env, check=False, capture_output=True)
            until = time.monotonic() + 15
            while call(env, "squeue", "-h") and time.monotonic() < until:
                time.sleep(0.2)
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                daemon.wait(timeout=20)


def call(env: dict[str, str], *words: str) -> str:
    """What a command prints. Raises: CalledProcessError unless it is squeue or sinfo, whose daemon may be starting."""
    check = words[0] not in ("squeue", "sinfo")
    return subprocess.run(words, env=env, check=check, capture_output=True, text=True, timeout=60).stdout.strip()


def states(env: dict[str, str]) -> list[str]:
    return call(env, "sinfo", "-h", "-N", "-o", "%T").split()


def wait_for(what: str, ready: Callable[[], bool], log: Path, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not in {seconds:g} s\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
