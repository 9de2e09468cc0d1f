"""A cluster of `ray up`: what its file still lacks, its head, and the ssh tunnel to the head's ports."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import platform
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import yaml

from search.store.layout import UserError
from trainables.contract.errors import first_line, last_line

PLACEHOLDER = re.compile(r"SET-[\w-]*")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # names that both Amazon and Google accept
SCHEMES = {"aws": "s3", "gcp": "gs"}
STORAGE = re.compile(r"\bSEARCH_STORAGE=([^\s'\"]*)")
VERSIONS = {
    "python": re.compile(r"\bpython(3\.\d+) -m venv\b|rayproject/ray[\w-]*:[\w.]+-py(3\d+)"),
    "ray": re.compile(r"\bray(?:\[[\w,-]*\])?==(\d+\.\d+\.\d+)|rayproject/ray[\w-]*:(\d+\.\d+\.\d+)"),
}
ACCESS = {  # provider -> field of node_config without which Ray grants too much or too little
    "aws": ("IamInstanceProfile", "a head without one gets AmazonEC2FullAccess, a worker cannot reach the bucket"),
    "gcp": ("serviceAccounts", "Ray gives the head all of Compute Engine, a worker cannot reach the bucket"),
}
DASHBOARD, MLFLOW = 8265, 5000  # ports on the head's loopback
TUNNEL_S = 30.0  # limit for ssh to bring up a tunnel
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=15"]
SSH += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
LOGIN = ". ~/search.env 2>/dev/null; "  # what cluster.yaml writes on every node


Faults = Iterator[tuple[int, str]]  # (line, what is wrong)


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file: its data, its lines as they are and without comments, the place of each key."""

    data: dict[str, Any]
    lines: list[str]
    code: list[str]
    keys: dict[str, tuple[int, int]]  # `provider.type` -> line (1-based), column (0-based)

    def line(self, path: str) -> int:
        """The line of a key, or of the deepest one above it that is there."""
        while path and path not in self.keys:
            path = path.rpartition(".")[0]
        return self.keys[path][0] if path else 1

    def matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """(line, match) outside comments."""
        return ((n, found) for n, text in enumerate(self.code, 1) for found in pattern.finditer(text))


def read_cluster(path: str | os.PathLike[str]) -> ClusterFile:
    """Raises: UserError when the file cannot be read or is no Ray cluster file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data, root = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cluster file {path}: {_reason(error)}") from error
    has = data.get if isinstance(data, dict) else {}.get
    kinds = {"auth": dict, "cluster_name": str, "provider": dict}
    if missing := [key for key, kind in kinds.items() if not isinstance(has(key), kind)]:
        lacking = ", ".join(missing)
        raise UserError(f"cluster file {path}: expected a Ray cluster file such as cluster.yaml; it has no {lacking}")
    lines = text.splitlines()
    code = [re.split(r"(?:^|\s)#", line, maxsplit=1)[0] for line in lines]
    return ClusterFile(data, lines, code, dict(_keys(root, "")))


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else " ".join(str(error).split())


def _keys(node: Any, path: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """(path, place) of every key below a YAML node."""
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield from _keys(item, path)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        below = f"{path}.{key.value}".lstrip(".")
        yield below, (key.start_mark.line + 1, key.start_mark.column)
        yield from _keys(value, below)


def cluster_faults(path: str | os.PathLike[str], versions: bool = True) -> list[str]:
    """What keeps a cluster from coming up safely, `FILE:LINE: what is wrong` by line: values still to be set, access
    rights left to Ray, a storage that nodes do not share, what Ray's own schema rejects.

    Args: versions: also where the file names another Python (minor) or Ray for its nodes than this machine has: no
        job would start.
    Raises: UserError when it is no cluster file.
    """
    file = read_cluster(path)
    found = [*_placeholders(file), *_access(file), *_storage(file), *(_versions(file) if versions else ())]
    found += _schema(file, {line for line, _ in found})
    return [f"{os.fspath(path)}:{line}: {text}" for line, text in sorted(set(found))]


def _placeholders(file: ClusterFile) -> Faults:
    """SET-..., and what the comment of its line explains."""
    for line, found in file.matches(PLACEHOLDER):
        comment = re.search(r"\s# SET: (.*)", file.lines[line - 1])
        before = ((place, path) for path, place in file.keys.items() if place <= (line, found.start()))
        yield line, f"{max(before)[1]}: {found[0]} is still to be set" + (f" ({comment[1]})" if comment else "")


def _access(file: ClusterFile) -> Faults:
    """The login, and names whose absence makes Ray open or allow more than it should."""
    auth, provider = file.data["auth"], file.data["provider"]
    if "ssh_user" not in auth:
        yield file.line("auth"), "auth.ssh_user: missing"
    key = str(auth.get("ssh_private_key", ""))
    if key and not PLACEHOLDER.search(key) and not os.path.exists(os.path.expanduser(key)):
        yield file.line("auth.ssh_private_key"), f"auth.ssh_private_key: {key}: no such file here"
    if provider.get("type") == "aws" and not (provider.get("security_group") or {}).get("GroupName"):
        why = "missing GroupName: Ray would make a group that opens port 22 to the world"
        yield file.line("provider.security_group"), f"provider.security_group: {why}"
    if provider.get("type") in ACCESS:
        field, why = ACCESS[provider["type"]]
        for name, node in (file.data.get("available_node_types") or {}).items():
            if not (node.get("node_config") or {}).get(field):
                path = f"available_node_types.{name}.node_config"
                yield file.line(path), f"{path}.{field}: missing: {why}"


def _storage(file: ClusterFile) -> Faults:
    """SEARCH_STORAGE as the nodes will have it."""
    found = [(line, match[1]) for line, match in file.matches(STORAGE)]
    kind = file.data["provider"].get("type")
    scheme = SCHEMES.get(kind)
    if not found and (scheme or kind == "local"):
        why = "no SEARCH_STORAGE: studies would lie on the head's own disk, out of the workers' reach"
        yield file.line("setup_commands"), f"setup_commands: {why}"
    for line, uri in found:
        given, _, rest = uri.rpartition("://")
        why = ""
        if PLACEHOLDER.search(uri):
            continue
        if not given and scheme:
            why = f"expected a bucket, {scheme}://NAME/FOLDER: nodes share no disk"
        elif not given and not rest.startswith(("/", "$", "~")):
            why = "expected an absolute path or a bucket"
        elif given and not BUCKET.fullmatch(rest.partition("/")[0]):
            why = "bucket names have 3 to 63 of a-z, 0-9, '.', '-'"
        elif given and scheme and given != scheme:
            why = f"expected {scheme}:// on {kind}"
        if why:
            yield line, f"SEARCH_STORAGE: {uri or 'empty'}: {why}"


def _schema(file: ClusterFile, known: Set[int]) -> Faults:
    """What `ray up` would reject. Only the first fault has a line and a message of Ray's. known: lines with faults."""
    from ray.autoscaler._private.util import prepare_config, validate_config  # no public way; guarded by a test

    try:
        validate_config(prepare_config(copy.deepcopy(file.data)))
    except Exception as error:  # a jsonschema.ValidationError, or whatever Ray raises on the way to it
        above = ".".join(str(key) for key in getattr(error, "absolute_path", ()) if isinstance(key, str))
        message = first_line(error)
        paths = [f"{above}.{word}".lstrip(".") for word in re.findall(r"['`]([\w-]+)['`]", message)]
        line = file.line(next((path for path in paths if path in file.keys), above))
        if line not in known:
            yield line, f"{above}: {message}" if above else message


def _versions(file: ClusterFile) -> Faults:
    for name, here in (("python", ".".join(platform.python_version_tuple()[:2])), ("ray", metadata.version("ray"))):
        for line, found in file.matches(VERSIONS[name]):
            there = re.sub(r"^3(?=\d)", "3.", found[1] or found[2])  # an image's py311
            if there != here:
                yield line, f"{name} {there} on the nodes, {here} here: make them the same"


@dataclass(frozen=True)
class Head:
    """The head node of a cluster and how to log in there.

    Attributes: config: the cluster file; container: the Docker container that its nodes work in, if any.
    """

    config: str
    name: str
    address: str
    user: str
    key: str | None = None
    proxy: str | None = None
    container: str | None = None

    def ssh(self, *options: str) -> list[str]:
        """The ssh command line up to the command to run there.

        The host key is learnt at the first contact and must stay the same (Ray itself checks none).
        """
        key = ["-i", os.path.expanduser(self.key), "-o", "IdentitiesOnly=yes"] if self.key else []
        proxy = ["-o", f"ProxyCommand={self.proxy}"] if self.proxy else []
        return [*SSH, *key, *proxy, *options, f"{self.user}@{self.address}"]

    def shell(self, command: str) -> list[str]:
        """The command line that runs a shell command where the head's Ray runs."""
        line = f"bash -c {shlex.quote(LOGIN + command)}"
        return [*self.ssh(), f"docker exec {shlex.quote(self.container)} {line}" if self.container else line]

    def run(self, command: str) -> int:
        """Run a command on the head with this terminal's output; its exit code.

        Raises: UserError when ssh itself fails.
        """
        code = subprocess.run(self.shell(command), check=False).returncode
        if code == 255:
            raise UserError(f"--cluster {self.config}: ssh to the head failed")
        return code


def find_head(path: str | os.PathLike[str], versions: bool = False) -> Head:
    """The running head of a cluster, as its provider reports it. versions: as in `cluster_faults`.

    Raises: UserError when the file is unfinished (a line for each fault), there is no head, or the token that `ray up`
        gave to the nodes is missing here.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it once, when the check imports it
    if faults := cluster_faults(path, versions):
        raise UserError("\n".join(faults))
    use_token(path)
    from ray.autoscaler.sdk import get_head_node_ip

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            address = get_head_node_ip(os.fspath(path))
        except (Exception, SystemExit) as error:  # providers and Ray's printer raise what they like
            why = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"--cluster {path}: no running head ({why[:200]}); start it with `ray up {path}`"
            ) from error
    data = read_cluster(path).data
    auth, container = data["auth"], (data.get("docker") or {}).get("container_name")
    key, proxy = auth.get("ssh_private_key"), auth.get("ssh_proxy_command")
    return Head(os.fspath(path), data["cluster_name"], address, auth["ssh_user"], key, proxy, container)


def use_token(path: str | os.PathLike[str]) -> None:
    """Make Ray's clients in this process send the token of `~/.ray/auth_token`.

    Raises: UserError when there is no token, or others can read it.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ and not token.exists():
        raise UserError(f"--cluster {path}: no token in {token}; take the file from where `ray up` ran")
    if token.exists() and token.stat().st_mode & 0o077:
        raise UserError(f"{token}: others can read this token; `chmod 600 {token}`")


class Tunnel:
    """Forwarded ports of the head's loopback, open inside a `with` block.

    Attributes: ports: port of the head -> the one here: the one wanted if it is free (0 = any).
    """

    def __init__(self, head: Head, ports: Mapping[int, int]) -> None:
        self.head, self.ports = head, {there: free_port(wanted) for there, wanted in ports.items()}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def ensure(self) -> None:
        """Bring the tunnel up, or up again after it broke.

        Raises: UserError when ssh fails or takes longer than TUNNEL_S.
        """
        if self._process is not None and self._process.poll() is None:
            return
        forwards = [x for there, here in self.ports.items() for x in ("-L", f"127.0.0.1:{here}:127.0.0.1:{there}")]
        line = self.head.ssh("-N", "-o", "ExitOnForwardFailure=yes", *forwards)
        # A process group of its own: Ctrl-C on the terminal is for this process, with the tunnel still up.
        self._process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        until = time.monotonic() + TUNNEL_S
        while not all(map(_listening, self.ports.values())):
            if self._process.poll() is not None:
                assert self._process.stderr is not None
                why = last_line(self._process.stderr.read().strip() or "ssh failed")
                raise UserError(f"cluster {self.head.name}: tunnel to {self.head.address}: {why}")
            if time.monotonic() > until:
                self.__exit__()
                raise UserError(f"cluster {self.head.name}: no tunnel to {self.head.address} in {TUNNEL_S:g} s")
            time.sleep(0.1)


def free_port(wanted: int = 0) -> int:
    """`wanted` if it is free on the loopback, else any free port."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", wanted))
        except OSError:
            s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
