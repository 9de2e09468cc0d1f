"""A cloud of Linux namespaces, so that a real `ray up` can be tested on one machine.

    python minicloud.py --workdir W --venv V -- COMMAND...   # root; needs sshd, ssh, rsync, ip, iptables, unshare

COMMAND runs on a "laptop". Instances are made over a small HTTP API (what the AWS provider's API is to EC2, see
minicloud_provider.py); each has its own network, processes, mounts, name and IPC, its own home, temporary folder and
/dev/shm, and an sshd. All of it sits inside ONE outer process namespace: when COMMAND ends or this process is killed,
the kernel ends everything, so there is nothing to clean up.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LAPTOP, PORT = "10.77.0.1", 8099
HERE = Path(__file__).resolve().parent
LAB = Path("/mnt/lab")
NAMESPACES = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
NEEDED = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "iptables", "unshare", "mount")


class Cloud:
    """Instances `i-001`...: made, powered off, listed."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()

    def create(self, tags: dict[str, str], count: int) -> dict[str, str]:
        """Boot instances; name -> address. Their sshd answers a moment later, as in any cloud."""
        with self._lock:
            return dict(self._boot(dict(tags)) for _ in range(count))

    def terminate(self, name: str, why: str = "terminate") -> None:
        """Power off at once: the death of `unshare` takes the whole process namespace with it."""
        with self._lock:
            node = self.nodes[name]
            if node["state"] == "running":
                node |= {"state": "terminated", "gone": time.time()}
                self._processes[name].kill()
                self._processes[name].wait()
                say(f"{why} {name}")

    def preempt(self, name: str) -> None:
        self.terminate(name, "preempt")

    def ls(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            return {name: dict(node) for name, node in self.nodes.items()}

    def set_tags(self, name: str, tags: dict[str, str]) -> None:
        with self._lock:
            self.nodes[name]["tags"].update(tags)

    def _boot(self, tags: dict[str, str]) -> tuple[str, str]:
        number = len(self.nodes) + 1
        name, address = f"i-{number:03d}", f"10.77.0.{10 + number}"
        env = {**os.environ, "LAB_ID": name, "LAB_IP": address, "LAB_N": str(number), "LAB_LAPTOP": LAPTOP}
        with (LAB / f"{name}.log").open("w") as log:
            command = [*NAMESPACES, "bash", "-c", f". {HERE}/minicloud_host.sh; instance"]
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        ours = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{process.pid}/ns/net") == ours:  # until `unshare` has its own
            time.sleep(0.02)
        ip(f"link add v{number} type veth peer name p{number}")
        ip(f"link set v{number} master br0 up")
        ip(f"link set p{number} netns {process.pid}")
        self._processes[name] = process
        self.nodes[name] = {"ip": address, "tags": tags, "state": "running", "made": time.time()}
        say(f"create {name} {address} {tags.get('ray-user-node-type')}")
        return name, address


def serve(cloud: Cloud) -> None:
    """The cloud's API: POST /<method> with the arguments as JSON."""
    methods = {m.__name__: m for m in (cloud.create, cloud.terminate, cloud.preempt, cloud.ls, cloud.set_tags)}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                code, answer = 200, methods[self.path.strip("/")](**arguments)
            except (KeyError, TypeError, OSError, subprocess.SubprocessError) as error:
                code, answer = 500, {"error": repr(error)}
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    threading.Thread(target=ThreadingHTTPServer((LAPTOP, PORT), Handler).serve_forever, daemon=True).start()


def call(method: str, **arguments: Any) -> Any:
    """Ask the cloud's API, from the laptop or from an instance."""
    request = urllib.request.Request(f"http://{LAPTOP}:{PORT}/{method}", json.dumps(arguments).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def machine_room(workdir: Path, venv: Path, command: list[str]) -> int:
    """Inside the outer namespace: the network, the API, and the laptop on which `command` runs; its exit code."""
    base = subprocess.check_output([venv / "bin/python", "-c", "import sys; print(sys.base_prefix)"], text=True).strip()
    os.environ |= {"LAB_VENV": str(venv), "LAB_KEEP": f"{venv} {base} {HERE.parent.parent}"}
    run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    LAB.mkdir()
    run("mount", "--bind", str(workdir), str(LAB))
    for folder in ("shared", "keys", "hosts"):
        (LAB / folder).mkdir(exist_ok=True)
    for key in ("id", "host"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(LAB / "keys" / key))
    run("hostname", "laptop")
    ip("link set lo up")
    ip("link add br0 address 02:00:00:00:00:01 type bridge")  # fixed, else it changes with its ports and tunnels drop
    ip(f"addr add {LAPTOP}/24 dev br0")
    ip("link set br0 up")
    serve(Cloud())
    laptop = ["unshare", "--mount", "bash", "-c", f'. {HERE}/minicloud_host.sh; laptop "$@"', "laptop", *command]
    return subprocess.run(laptop, check=False).returncode


def missing() -> str:
    """Why no test cloud can run here: "not root", the programs that are missing; "" when it can."""
    if os.geteuid() != 0:
        return "not root"
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    if lacking := [name for name in NEEDED if shutil.which(name, path=path) is None]:
        return f"not installed: {', '.join(lacking)}"
    trial = "mount -t tmpfs tmpfs /mnt && ip link set lo up && iptables -A INPUT -p tcp --syn -j REJECT"
    probe = subprocess.run([*NAMESPACES, "sh", "-c", trial], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "namespaces are not allowed"


def ip(arguments: str) -> None:
    run("ip", *arguments.split())


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def say(what: str) -> None:
    print(f"[cloud] {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True, help="where the disks of all hosts lie")
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if given.inside:
        code = machine_room(given.workdir, given.venv, given.command)
        os._exit(code if code >= 0 else 128 - code)  # the API's threads need no goodbye
    workdir, venv = given.workdir.absolute(), given.venv.absolute()
    again = [sys.executable, __file__, "--inside", "--workdir", str(workdir), "--venv", str(venv), "--"]
    os.execvp("unshare", [*NAMESPACES, *again, *given.command])


if __name__ == "__main__":
    main()
