"""What is around a search: a tracker or a head that is gone, other users, other machines."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import s3fs
import yaml
from click.testing import CliRunner
from driver_sessions import ROOT, SEARCH, Study
from processes import below, sigkill

from search.cli.main import main
from search.remote.cluster import use_token
from search.remote.jobs import SECRET, make_bundle
from search.running.ray_session import check_head
from search.schema import unreachable
from search.store.environment import environment, moved_on
from search.store.layout import UserError, check_name, new_study
from trainables.contract.errors import DataError
from trainables.data.tokens import cache_dir


def nobody_listens() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_unreachable_tracker_is_reported_and_search_continues(tmp_path: Path) -> None:
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    study = Study(tmp_path, trials=1, data=data, train={"max_examples": 300, "eval_examples": 100})
    study.program = [sys.executable, "-m", "search"]  # ray is imported by the command itself, when it is ready for it
    uri = f"http://127.0.0.1:{nobody_listens()}"
    study.environment["MLFLOW_TRACKING_URI"] = uri
    process = study.run()
    assert process.stdout is not None
    began = time.monotonic()
    said = next(line for line in process.stdout if "tracker: " in line or "Traceback" in line)
    listening = listeners(process.pid)
    text, _ = process.communicate(timeout=240)
    assert f"tracker: {uri} does not answer" in said
    assert time.monotonic() - began < 240
    assert process.returncode == 0, text
    assert set(study.ends().values()) == {"completed"}
    assert "the tracker is behind" in text
    assert all(address.startswith("127.") or address == "::1" for address in listening), listening


def listeners(pid: int) -> set[str]:
    """Addresses that a process and its children come to listen on within its first trial."""
    found: set[str] = set()
    until = time.monotonic() + 60
    while time.monotonic() < until and psutil.pid_exists(pid):
        try:
            children = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        pids = {p.pid for p in children}
        lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        for line in lines:
            owners = {int(number) for number in re.findall(r"pid=(\d+)", line)}
            if owners & pids:
                host = line.split()[3].rsplit(":", 1)[0].strip("[]")
                found.add(host.removeprefix("::ffff:"))
        if any(p.name().startswith("ray::TrialJob") for p in children if p.is_running()):
            break
        time.sleep(0.3)
    assert found, "nothing listens"
    return found


def test_a_head_that_is_gone_is_refused_soon() -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="cannot be reached: Connection refused"):
        check_head(f"127.0.0.1:{nobody_listens()}")
    with pytest.raises(UserError, match="cannot be reached"):
        check_head("host.invalid:6379")
    check_head("auto")
    assert time.monotonic() - began < 10


def test_only_servers_are_checked_for_an_answer() -> None:
    assert unreachable("sqlite:////nowhere/mlflow.db") == ""
    assert "does not answer" in unreachable(f"http://127.0.0.1:{nobody_listens()}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert unreachable(f"http://127.0.0.1:{server.getsockname()[1]}") == ""


def test_keys_do_not_travel(tmp_path: Path) -> None:
    folder = tmp_path / "extras"
    folder.mkdir()
    for name in ("words.txt", ".env", "server.pem", "id_rsa"):
        (folder / name).write_text("x")
    make_bundle(tmp_path / "job", None, [str(folder)])
    sent = {p.name for p in (tmp_path / "job").rglob("*") if p.is_file()}
    assert "words.txt" in sent
    assert not sent & {".env", "server.pem", "id_rsa"}
    with pytest.raises(UserError, match="looks like a key"):
        make_bundle(tmp_path / "other", None, [str(folder / "server.pem")])


def test_a_token_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UserError, match="others can read this token; `chmod 600"):
        use_token("cluster.yaml")
    token.chmod(0o600)
    use_token("cluster.yaml")


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEARCH_CACHE_DIR", str(folder))
    assert cache_dir() == folder
    folder.mkdir()
    for mode, sound in ((0o700, True), (0o755, True), (0o777, False), (0o1777, False)):
        folder.chmod(mode)
        if sound:
            assert cache_dir() == folder
        else:
            with pytest.raises(DataError, match=r"SEARCH_CACHE_DIR=.*: others can write it"):
                cache_dir()
    folder.chmod(0o700)
    if os.getuid() == 0:
        os.chown(folder, 65534, 65534)
        with pytest.raises(DataError, match="belongs to another user"):
            cache_dir()


@pytest.mark.parametrize("place", ["SEARCH_CACHE_DIR", "HOME"])
def test_a_cache_that_cannot_be_written_is_one_line(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trial would fail by it, each in its own words."""
    for name in ("SEARCH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv(place, str(tmp_path / "file" / "home"))
    study = Study(tmp_path)
    done = CliRunner().invoke(main, ["run", str(study.file), "--storage", str(study.storage)])
    assert done.exit_code == 2
    said = done.output.splitlines()[-1]
    assert re.search(r"file/home.*: the cache cannot be written \(Not a directory\); set SEARCH_CACHE_DIR", said), said
    assert "Traceback" not in done.output
    assert not study.storage.exists()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_head_that_somebody_started(tmp_path: Path) -> None:
    """It has no GPU and no autoscaler: trials that may do without take its CPUs, and it outlives the search."""
    port, temp = nobody_listens(), Path(tempfile.mkdtemp(dir="/tmp"))
    words = f"start --head --port={port} --num-cpus=1 --include-dashboard=false --temp-dir={temp} --block"
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {
        "PYTHONPATH": f"{SEARCH}:{ROOT}", "RAY_AUTH_MODE": "disabled"
    }  # fmt: skip
    command = [sys.executable, "-m", "ray.scripts.scripts", *words.split(), "--disable-usage-stats"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
        try:
            until = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0 and time.monotonic() < until:
                time.sleep(0.2)
            study = Study(tmp_path, trials=3)
            study.environment = {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "disabled"}
            code, text = study.command("run", str(study.file), "--name", study.name)
            assert code == 0, text
            assert "no node has a GPU" not in text
            assert head.poll() is None
        finally:
            sigkill([*below(head.pid), psutil.Process(head.pid)])
            shutil.rmtree(temp, ignore_errors=True)
    code, text = study.command("resume", study.name, "--set", "search.trials=4")
    assert (code, "cannot be reached" in text) == (2, True), text
    study.environment.clear()
    assert study.command("resume", study.name, "--set", "search.trials=4")[0] == 0
    assert list(study.ends().values()) == ["completed"] * 4


def test_failed_ray_start_is_retried_once_and_leaves_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def times_out(folder: Path) -> None:
        asked.append(folder)
        raise RuntimeError("The current node timed out during startup.\nIt may be that ...")

    monkeypatch.setattr("search.running.private_ray._init", times_out)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    study = Study(tmp_path)
    done = CliRunner().invoke(main, ["run", str(study.file), "--storage", str(study.storage)])
    assert done.exit_code == 2
    said = "Ray does not start on this machine (tried 2 times): The current node timed out during startup."
    assert done.output.splitlines()[-1] == said
    assert len(asked) == 2
    assert not asked[0].parent.exists()
    assert CliRunner().invoke(main, ["list", "--storage", str(study.storage)]).output.startswith("no study")


@pytest.mark.parametrize("words", [["run"], ["list"], ["status"], ["resume", "x"], ["confirm", "x"]])
def test_a_bucket_without_credentials_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    given = [str(Study(tmp_path).file)] if words == ["run"] else []
    done = CliRunner().invoke(main, [*words, *given, "--storage", "s3://bucket-of-nobody/runs"])
    assert done.exit_code == 2, done.output
    wanted = "storage s3://bucket-of-nobody/runs: cannot be listed: Unable to locate credentials"
    assert done.output.splitlines()[-1] == wanted


def test_other_software_than_at_the_studys_start_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    now = environment()
    file.write_text(json.dumps(now))
    assert moved_on(file) == []
    file.write_text(json.dumps({**now, "versions": {**now["versions"], "torch": "1.0"}}))
    assert moved_on(file) == [
        f"since the study began torch 1.0 is now {now['versions']['torch']}: results before and after may differ"
    ]
    file.write_text("{")
    assert moved_on(file) == []


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync, by which `ray up` copies")
@pytest.mark.parametrize("file", ["cluster.yaml", "docs/cluster/gcp.yaml", "docs/cluster/onprem.yaml"])
def test_ray_up_copies_no_keys_but_the_mounted_ones(file: str, tmp_path: Path) -> None:
    """Real rsync with the options that Ray gives it, for the project and for a file mounted alone."""
    config = yaml.safe_load((ROOT / file).read_text())
    options = [f"--exclude={pattern}" for pattern in config["rsync_exclude"]]
    options += [f"--filter=dir-merge,- {name}" for name in config["rsync_filter"]]
    project, home, node = tmp_path / "project", tmp_path / "home", tmp_path / "node"
    secrets = [secret.replace("*", "x") for secret in SECRET]
    for folder in (project, project / "deeper", home, node):
        folder.mkdir()
        for name in secrets if folder != node else ():
            (folder / name).write_text("secret") if name not in (".ssh", ".aws") else (folder / name).mkdir()
    shutil.copy(ROOT / ".gitignore", project)
    (project / "deeper" / "space.yaml").write_text("")
    subprocess.run(["rsync", "-a", *options, f"{project}/", f"{node}/project/"], check=True)
    there = {path.name for path in (node / "project").rglob("*")}
    assert there == {".gitignore", "deeper", "space.yaml"}
    for mounted in ("auth_token", "x.pem", "id_ed25519x"):  # Ray's token, and the key by which the head reaches workers
        subprocess.run(["rsync", "-a", *options, f"{home}/{mounted}", f"{node}/{mounted}"], check=True)
        assert (node / mounted).exists()


@pytest.mark.parametrize("name", ["a'b", "a\nb", "-x", ".hidden", "", "a b", "x" * 101, "mlflow.db", "ä"])
def test_names_that_filters_and_shells_would_not_take(name: str) -> None:
    with pytest.raises(UserError, match="--name: expected letters, digits"):
        check_name(name)


@pytest.mark.parametrize("odd", "?%#")
def test_a_storage_that_mlflow_would_split(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=f"{re.escape(odd)} cannot stand in the path"):
        new_study(str(tmp_path / f"a{odd}b"), "x")
    assert not list(tmp_path.iterdir())


def test_printed_commands_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from search.store.layout import storage_option

    monkeypatch.delenv("SEARCH_CLUSTER", raising=False)
    assert storage_option("/tmp/my runs") == " --storage '/tmp/my runs'"
    done = CliRunner().invoke(main, ["list", "--storage", str(tmp_path / "my runs")])
    assert done.exit_code == 0


def test_rays_folders_are_closed_to_other_users() -> None:
    from search.running import private_ray

    parent = private_ray._parent()
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    assert parent.stat().st_uid == os.getuid()
    old, young = parent / "old", parent / "young"
    for folder in (old, young):
        folder.mkdir(exist_ok=True)
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    private_ray.clear(parent)
    assert not old.exists()
    assert young.exists()
    young.rmdir()
