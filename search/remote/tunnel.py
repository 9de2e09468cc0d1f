"""The way from a laptop to the head of a cluster: ssh, and nothing else, for commands and for forwarded ports."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.remote.cluster_file import read_cluster, refuse_unfinished
from search.store.layout import UserError
from trainables.contract.errors import last_line

DASHBOARD, MLFLOW = 8265, 5000  # ports on the head's loopback
TUNNEL_S = 30.0  # how long ssh may take to bring up a tunnel
COMMAND_S = 60.0  # how long a command on the head may take
LOGIN = ". ~/search.env 2>/dev/null; "  # what cluster.yaml writes on every node


@dataclass(frozen=True)
class Head:
    """The head node of a cluster and how to log in there. config: the cluster file it came from."""

    config: Path
    name: str
    address: str
    user: str
    key: str | None = None
    proxy: str | None = None

    def ssh(self, *options: str) -> list[str]:
        """The ssh command line up to the command to run there.

        The host key is learnt at the first contact and must stay the same (Ray itself checks none).
        """
        line = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=15"]
        line += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
        if self.key:
            line += ["-i", os.path.expanduser(self.key), "-o", "IdentitiesOnly=yes"]
        if self.proxy:
            line += ["-o", f"ProxyCommand={self.proxy}"]
        return [*line, *options, f"{self.user}@{self.address}"]

    def output(self, command: str) -> str:
        """Standard output of a shell command on the head.

        Raises: UserError with the last line of its error output when it fails or the head does not answer.
        """
        line = [*self.ssh(), f"bash -c {shlex.quote(LOGIN + command)}"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            raise UserError(f"cluster {self.name}: head {self.address} did not answer in {COMMAND_S:g} s") from None
        if done.returncode:
            said = last_line(done.stderr.strip() or f"exit code {done.returncode}")
            raise UserError(f"cluster {self.name}: head {self.address}: {said}")
        return done.stdout

    def run(self, command: str) -> int:
        """Run a command on the head with this terminal's output; its exit code (255 = ssh itself failed)."""
        return subprocess.run([*self.ssh(), f"bash -c {shlex.quote(LOGIN + command)}"], check=False).returncode


def find_head(path: str | os.PathLike[str]) -> Head:
    """The running head of a cluster, asked of its provider.

    Raises: UserError when the file is unfinished (`search cluster check`), there is no head, or the token that `ray up`
        gave to the nodes is missing here.
    """
    config = read_cluster(path)
    refuse_unfinished(path)
    use_token(path)
    from ray.autoscaler.sdk import get_head_node_ip

    with _quiet():
        try:
            address = get_head_node_ip(os.fspath(path))
        except (Exception, SystemExit) as error:  # providers and Ray's printer raise what they like
            said = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"--cluster {path}: no running head ({said[:200]}); start it with `ray up {path}`"
            ) from error
    auth: Mapping[str, Any] = config["auth"]
    key, proxy = auth.get("ssh_private_key"), auth.get("ssh_proxy_command")
    return Head(Path(path), config["cluster_name"], address, auth["ssh_user"], key, proxy)


def use_token(path: str | os.PathLike[str]) -> None:
    """Make Ray's clients in this process send the token of `~/.ray/auth_token`.

    Raises: UserError when there is no token.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ and not token.exists():
        raise UserError(f"--cluster {path}: no token in {token}; take the file from where `ray up` ran")
    if token.exists() and token.stat().st_mode & 0o077:
        raise UserError(f"{token}: others can read this token; `chmod 600 {token}`")


class Tunnel:
    """Forwarded ports of the head's loopback; `ports` maps a port there to the one here."""

    def __init__(self, head: Head, ports: Mapping[int, int]) -> None:
        self.head, self.ports = head, dict(ports)
        self._process: subprocess.Popen[str] | None = None

    def ensure(self) -> None:
        """Bring the tunnel up, or up again after it broke.

        Raises: UserError when ssh fails or takes longer than TUNNEL_S.
        """
        if self._process is not None and self._process.poll() is None:
            return
        forwards = [x for there, here in self.ports.items() for x in ("-L", f"127.0.0.1:{here}:127.0.0.1:{there}")]
        line = self.head.ssh("-N", "-o", "ExitOnForwardFailure=yes", *forwards)
        # A session of its own: Ctrl-C on the terminal is ours to handle, with the tunnel still up.
        self._process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        until = time.monotonic() + TUNNEL_S
        while not all(answers(port) for port in self.ports.values()):
            if self._process.poll() is not None:
                assert self._process.stderr is not None
                said = last_line(self._process.stderr.read().strip() or "ssh failed")
                raise UserError(f"cluster {self.head.name}: tunnel to {self.head.address}: {said}")
            if time.monotonic() > until:
                self.close()
                raise UserError(f"cluster {self.head.name}: no tunnel to {self.head.address} in {TUNNEL_S:g} s")
            time.sleep(0.1)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def tunnel(head: Head, *there: int) -> Iterator[Tunnel]:
    """A tunnel to ports of the head, each under a free port here, open inside the `with` block."""
    opened = Tunnel(head, {port: free_port() for port in there})
    try:
        opened.ensure()
        yield opened
    finally:
        opened.close()


def free_port(wanted: int = 0) -> int:
    """`wanted` if it is free on the loopback, else any free port."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", wanted))
        except OSError:
            s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something listens on a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what Ray's command line prints on the way."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
