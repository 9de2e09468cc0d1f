"""`search cluster check FILE`: it reports every gap of a cluster file with its line, before any request to a cloud."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import pytest
import ray.autoscaler.sdk
from click.testing import CliRunner

from search.cli.main import main
from search.remote.cluster import cluster_faults, find_head
from search.store.layout import UserError

ROOT = Path(__file__).parents[2]
AWS = ROOT / "cluster.yaml"
GCP, ONPREM, DOCKER = (ROOT / "docs" / "cluster" / f"{name}.yaml" for name in ("gcp", "onprem", "aws-docker"))
PYTHON = ".".join(platform.python_version_tuple()[:2])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; the home below it holds the keys that the files name."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    for name in ("search.pem", "search-gcp", "search"):
        (ssh / name).touch()
    return tmp_path


def finished(source: Path = AWS) -> str:
    """A shipped file as its user leaves it."""
    text = source.read_text(encoding="utf-8").replace("python3.12 -m venv", f"python{PYTHON} -m venv")
    values = {"SET-ami": "ami-0a1b2c3d4e5f60718", "SET-your-bucket": "my-bucket", "SET-your-project": "mine"}
    for name, value in values.items():
        text = text.replace(name, value)
    return re.sub(r"SET-([a-z])[\w-]*", r"\1", text)


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize("path", [AWS, GCP, ONPREM, DOCKER], ids=lambda p: p.stem)
def test_shipped_files_lack_only_what_is_to_be_set(path: Path, folder: Path) -> None:
    text = path.read_text(encoding="utf-8")
    faults = [fault.removeprefix(f"{path}:").split(":", 1) for fault in cluster_faults(path, versions=False)]
    lines = [
        n for n, line in enumerate(text.splitlines(), 1) if "SET-" in line.split(" #")[0] and not line.startswith("#")
    ]
    assert sorted({int(line) for line, _ in faults}) == lines
    assert all("is still to be set" in message for _, message in faults)
    (folder / "c.yaml").write_text(finished(path))
    result = CliRunner().invoke(main, ["cluster", "check", "c.yaml"])
    assert (result.exit_code, result.output) == (0, "c.yaml: complete\n")


BUCKET, PROFILE = "s3://my-bucket/search", "      IamInstanceProfile: {Name: search-head}"
ACCOUNT = """\
      serviceAccounts:
        - email: search@mine.iam.gserviceaccount.com
          scopes: [https://www.googleapis.com/auth/cloud-platform]
"""
IMAGE = "docker: {image: 'rayproject/ray:2.1.0-py39', container_name: ray}"
VENV, NODE = f"python{PYTHON} -m venv", "node_config: &node"


@pytest.mark.parametrize(
    ("source", "old", "new", "at", "text"),
    [
        (AWS, BUCKET, "SET-it", "SET-it", "setup_commands: SET-it is still to be set"),
        (AWS, BUCKET, "/home/me", "/home/me", "SEARCH_STORAGE: /home/me: expected a bucket, s3://NAME/FOLDER: nodes"),
        (AWS, BUCKET, "s3://My_B/x", "My_B", "SEARCH_STORAGE: s3://My_B/x: bucket names have 3 to 63 of a-z, 0-9,"),
        (AWS, BUCKET, "gs://my-bucket/x", "gs://", "SEARCH_STORAGE: gs://my-bucket/x: expected s3:// on aws"),
        (AWS, BUCKET, "", "SEARCH_STORAGE", "SEARCH_STORAGE: empty: expected a bucket"),
        (AWS, "SEARCH_STORAGE", "STORAGE", "setup_commands:", "setup_commands: no SEARCH_STORAGE: studies would"),
        (AWS, " GroupName: ", " IpPermissions: [] # ", "security_group:", "provider.security_group: missing Group"),
        (AWS, PROFILE, "", NODE, "available_node_types.head.node_config.IamInstanceProfile: missing: a head with"),
        (GCP, ACCOUNT, "", NODE, "available_node_types.head.node_config.serviceAccounts: missing: Ray gives"),
        (ONPREM, "/s/search", "runs", "=runs", "SEARCH_STORAGE: runs: expected an absolute path or a bucket"),
        (AWS, "search.pem", "other.pem", "other", "auth.ssh_private_key: ~/.ssh/other.pem: no such file here"),
        (AWS, "  ssh_user: ubuntu\n", "", "auth:", "auth.ssh_user: missing"),
        (AWS, VENV, "python3.9 -m venv", "python3.9", f"python 3.9 on the nodes, {PYTHON} here: make them the same"),
        (AWS, " -q -c", " 'ray[default]==2.1.0' -c", "2.1.0", "ray 2.1.0 on the nodes, "),
        (AWS, "max_workers: 8\nup", f"{IMAGE}\nup", "docker:", "ray 2.1.0 on the nodes,"),
        (AWS, "max_workers: 8\nup", f"{IMAGE}\nup", "docker:", "python 3.9 on the"),
        (AWS, "max_workers: 8\nup", "max_worker: 8\nup", "max_worker:", "Additional properties are not allowed"),
        (AWS, "    max_workers: 0", "    max_workers: many", "many", "available_node_types.head.max_workers: 'many'"),
        (AWS, "head_node_type: head", "head_node_type: hed", "head_node_type", "`head_node_type` must be one of"),
    ],
)  # fmt: skip
def test_a_gap_is_one_line(source: Path, old: str, new: str, at: str, text: str, folder: Path) -> None:
    before = finished(source)
    assert old in before
    after = before.replace(old, new)
    (folder / "c.yaml").write_text(after)
    result = CliRunner().invoke(main, ["cluster", "check", "c.yaml"])
    assert result.exit_code == 2
    expected = f"c.yaml:{line_of(after, at)}: {text}"
    assert any(line.startswith(expected) for line in result.output.splitlines()), result.output
    assert len({fault.split(":")[1] for fault in cluster_faults("c.yaml")}) == (2 if old == ACCOUNT else 1), (
        "a worker inherits what its head lacks"
    )


def test_other_files_are_one_line(folder: Path) -> None:
    (folder / "c.yaml").write_text("name: mine\n")
    result = CliRunner().invoke(main, ["cluster", "check", "c.yaml"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    missing = CliRunner().invoke(main, ["cluster", "check", "none.yaml"])
    assert (missing.exit_code, missing.output) == (2, "cluster file none.yaml: No such file or directory\n")


@pytest.mark.parametrize(
    "words",
    [
        ["run", str(ROOT / "spaces" / "quickstart.yaml")], ["resume", "x"], ["confirm", "x"], ["status"], ["list"],
        ["ui"], ["follow"], ["stop"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_every_command_rejects_an_unfinished_file(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ray.autoscaler.sdk, "get_head_node_ip", asked.append)
    (folder / "c.yaml").write_text(finished().replace("ami-0a1b2c3d4e5f60718", "SET-ami"))
    checked = CliRunner().invoke(main, ["cluster", "check", "c.yaml"])
    result = CliRunner().invoke(main, [*words, "--cluster", "c.yaml"])
    assert (result.exit_code, result.output) == (2, checked.output)
    assert not asked


def test_tokens_are_on_before_the_check_imports_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads RAY_AUTH_MODE once, when it is imported."""
    modes = []

    def faults(*_: Any) -> list[str]:
        modes.append(os.environ.get("RAY_AUTH_MODE"))
        return ["c.yaml:1: cluster_name: missing"]

    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setattr("search.remote.cluster.cluster_faults", faults)
    with pytest.raises(UserError):
        find_head("c.yaml")
    assert modes == ["token"]
