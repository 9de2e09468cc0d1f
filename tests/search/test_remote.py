"""What goes to a cluster and how its job is followed, without a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import click
import pytest
from click.testing import CliRunner
from harness import make_space

from search.cli.cluster import typed_arguments
from search.cli.main import main
from search.remote import jobs as remote
from search.remote.cluster import DASHBOARD, Head, read_cluster, use_token
from search.remote.jobs import bundled_name, make_bundle, mismatches
from search.remote.servers import out_of_reach
from search.space import Space, load_space
from search.store.environment import environment
from search.store.layout import CLUSTER_FILE, UserError, absolute, storage_option

HEAD = Head("c.yaml", "search", "203.0.113.5", "ubuntu", "~/key.pem")


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    return tmp_path


def with_data(train: str, dev: tuple[str, ...] = ("stsb",), encoder: str = "builtin:tiny") -> Space:
    space = make_space()
    return replace(space, encoder=encoder, data=replace(space.data, train=train, dev=dev))


@pytest.fixture
def target(user_folder: Path) -> Path:
    (user_folder / "job").mkdir()
    return user_folder / "job"


def write(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def sent(target: Path) -> set[str]:
    """The files of a job besides the project."""
    names = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    return {name for name in names if name.split("/")[0] not in remote.PACKAGES}


def test_a_jobs_folder_runs_by_itself(target: Path) -> None:
    assert make_bundle(target, make_space()) == {}
    assert not list(target.rglob("*.pyc"))
    command = [sys.executable, "-m", "search", "check", "space.yaml"]
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load_space(target / "space.yaml").resolved() == make_space().resolved()


def test_local_files_are_sent_and_keep_their_meaning(
    user_folder: Path, target: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, named = tmp_path_factory.mktemp("away"), tmp_path_factory.mktemp("named")
    write(user_folder / "data" / "mine.txt", *(away / f"pairs_{split}.tsv" for split in ("dev", "test")))
    write(away / "encoder" / "config.json", named / "en_stsb_dev.tsv", named / "en_sick_dev.tsv")
    monkeypatch.setenv("SEARCH_DATA_DIR", str(named))
    space = with_data("data/mine.txt", ("stsb", f"{away}/pairs_{{split}}.tsv"), encoder=str(away / "encoder"))
    assert make_bundle(target, space) == {"SEARCH_DATA_DIR": "carried"}
    assert sent(target) == {
        "space.yaml", "data/mine.txt", "carried/pairs_dev.tsv", "carried/pairs_test.tsv",
        "carried/encoder/config.json", "carried/en_stsb_dev.tsv",
    }  # fmt: skip
    text = (target / "space.yaml").read_text()
    for part in ("train: data/mine.txt", "carried/pairs_{split}.tsv", "encoder: carried/encoder"):
        assert part in text
    assert str(away) not in text


def test_folders_of_data_are_sent(user_folder: Path, target: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    away = tmp_path_factory.mktemp("away") / "parts"
    write(away / "a.parquet", user_folder / "beir" / "corpus.jsonl")
    make_bundle(target, with_data(str(away), ("./beir",)))
    assert sent(target) == {"space.yaml", "carried/parts/a.parquet", "beir/corpus.jsonl"}
    assert "train: carried/parts" in (text := (target / "space.yaml").read_text())
    assert "./beir" in text


def test_files_that_only_the_nodes_have_stay_as_written(target: Path) -> None:
    make_bundle(target, with_data("/data/on/the/nodes.txt"))
    assert "train: /data/on/the/nodes.txt" in (target / "space.yaml").read_text()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/x.tsv", "data/x.tsv"),
        ("./x_{split}.tsv", "x_{split}.tsv"),
        ("/elsewhere/x.tsv", "carried/x.tsv"),
        ("../x.tsv", "carried/x.tsv"),
        ("search/x.tsv", "carried/x.tsv"),  # our own package has that name there
        ("space.yaml", "carried/space.yaml"),
    ],
)
def test_names_in_the_bundle(path: str, name: str) -> None:
    assert bundled_name(Path(path)) == name


@pytest.mark.parametrize(
    ("carry", "message"),
    [
        (["nowhere.txt"], r"--carry nowhere.txt: no such file"),
        (["../one/same.txt", "../two/same.txt"], r"would both be carried/same.txt on the cluster; rename one"),
        (["large.bin"], r"at most 1 MiB, got \d+ MiB; the largest: large.bin \(3 MiB\).*file_mounts"),
    ],
)
def test_missing_too_large_or_ambiguous_files_are_one_line(
    carry: list[str], message: str, user_folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(user_folder / "one" / "same.txt", user_folder / "two" / "same.txt", user_folder / "here" / "large.bin")
    (user_folder / "here" / "large.bin").write_bytes(b"0" * 3 * 2**20)
    monkeypatch.chdir(user_folder / "here")
    monkeypatch.setattr(remote, "LIMIT_MIB", 1)
    with pytest.raises(UserError, match=message):
        make_bundle(target, None, carry)


def test_versions_differ_but_for_build_tags_and_patches() -> None:
    here = dict.fromkeys(remote.CHECKED, "2.13.0") | {"python": "3.11.7", "torch": "2.13.0+cpu"}
    assert mismatches(here, {**here, "python": "3.11.2", "torch": "2.13.0+cu128"}) == []
    assert mismatches(here, {**here, "python": "3.12.1", "ray": "2.59.1", "mlflow": None}) == [
        "python: 3.11.7 here, 3.12.1 there",
        "ray: 2.13.0 here, 2.59.1 there",
        "mlflow: 2.13.0 here, not installed there",
    ]


@pytest.mark.parametrize(
    ("code", "output", "error", "message"),
    [
        (0, '{"python": "3.11.0", "ray": "1.0"}', "", r"ray: .* here, 1.0 there.*ray up c.yaml.*--allow-mismatch"),
        (
            255,
            "",
            "ssh: connect to host 203.0.113.5: timed out\n",
            r"head 203.0.113.5: ssh: connect to host .* timed out",
        ),
    ],
)
def test_a_job_starts_only_beside_the_same_versions(
    code: int, output: str, error: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, output, error)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)  # noqa: ARG005
    with pytest.raises(UserError, match=message):
        remote.check_versions(HEAD, False, lambda text: None)  # noqa: ARG005
    if code == 0:
        printed: list[str] = []
        remote.check_versions(HEAD, True, printed.append)
        assert "1.0 there" in printed[0]


def test_the_versions_of_this_environment_are_read() -> None:
    done = subprocess.run([sys.executable, "-c", remote.VERSIONS_THERE], capture_output=True, text=True, check=True)
    assert mismatches(environment()["versions"], json.loads(done.stdout)) == []


class FakeJobs:
    """Ray's job client on a log: each connection sends it from its start, up to a piece that is an error."""

    def __init__(self, pieces: list[Any], end: str = "SUCCEEDED", code: int | None = 0) -> None:
        self.pieces, self.end, self.code, self.connections = pieces, end, code, 0

    def get_job_info(self, name: str) -> Any:
        from ray.job_submission import JobStatus

        over = all(isinstance(piece, str) for piece in self.pieces)
        status, code = (JobStatus(self.end), self.code) if over and self.connections else (JobStatus.RUNNING, None)
        return SimpleNamespace(
            status=status, driver_exit_code=code, message="why", submission_id=name, metadata={"study": "s-1"}
        )

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:  # noqa: ARG002
        self.connections += 1
        for n, piece in enumerate(self.pieces):
            if not isinstance(piece, str):
                del self.pieces[n]
                if piece is not None:
                    raise piece
                return
            yield piece


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(fake: FakeJobs) -> Any:
        monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: fake)  # noqa: ARG005
        monkeypatch.setattr(remote, "POLL_S", 0.0)
        return SimpleNamespace(head=HEAD, ports={DASHBOARD: 1}, ensure=lambda: None)

    return use


ENTRY = "Runtime env is setting up.\nRunning entrypoint for job j: bash\n"


@pytest.mark.parametrize(
    ("pieces", "connections"),
    [
        ([ENTRY, "one\ntw", "o\n", "three"], 1),
        ([ENTRY, "one\ntw", ConnectionError("gone"), "o\n", aiohttp.ClientError("gone"), "three"], 3),
        ([ENTRY[:20], None, ENTRY[20:], "one\n", RuntimeError("closed"), "two\nthree"], 3),
    ],
)
def test_a_log_is_printed_once_through_lost_connections(jobs: Any, pieces: list[Any], connections: int) -> None:
    printed: list[str] = []
    fake = FakeJobs(pieces)
    assert remote.follow(jobs(fake), "j", printed.append) == 0
    assert printed == ["one", "two", "three"]
    assert fake.connections == connections, "the log is read again only after a lost connection"


@pytest.mark.parametrize(
    ("end", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0), ("FAILED", 1, 1), ("FAILED", 2, 2), ("FAILED", 130, 130), ("FAILED", None, 1),
        ("STOPPED", 0, 130),
    ],
)  # fmt: skip
def test_follow_returns_the_drivers_exit_code(jobs: Any, end: str, code: int | None, expected: int) -> None:
    assert remote.follow(jobs(FakeJobs([ENTRY, "x\n"], end, code)), "j", lambda text: None) == expected  # noqa: ARG005


@pytest.mark.parametrize(
    ("ends", "code", "runs"),
    [
        (["kill -9 $$", "exit 0"], 0, ["run space.yaml", "resume s-1"]),
        (["kill -11 $$", "kill -9 $$", "exit 3"], 3, ["run space.yaml", "resume s-1", "resume s-1"]),
        (["exit 1"], 1, ["run space.yaml"]),
        (["exit 143"], 143, ["run space.yaml"]),
        (["kill -9 $$"] * 9, 137, ["run space.yaml"] + ["resume s-1"] * 5),
    ],
)
def test_only_a_crashed_driver_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[str], code: int, runs: list[str]
) -> None:
    monkeypatch.setattr(remote, "RESUME_S", 0)
    stub = tmp_path / "python"
    stub.write_text('#!/bin/bash\ncd "${0%/*}"\necho "${@:3}" >> calls\neval "$(sed -n "$(wc -l < calls)p" ends)"\n')
    stub.chmod(0o755)
    (tmp_path / "ends").write_text("\n".join(ends) + "\n")
    script = remote.supervised(["run", "space.yaml"], ["resume", "s-1"])
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", script], env=env, check=False).returncode == code
    assert (tmp_path / "calls").read_text().splitlines() == runs


def test_stopped_job_waits_for_its_driver_and_starts_no_other(tmp_path: Path) -> None:
    """Ray sends SIGTERM to the whole process group."""
    stub = tmp_path / "python"
    stub.write_text("#!/bin/bash\ntrap 'sleep 1; echo saved; exit 143' TERM\necho up\nwhile :; do sleep 0.1; done\n")
    stub.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ["bash", "-c", remote.supervised(["run"], ["resume"])]
    with subprocess.Popen(script, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        os.killpg(job.pid, signal.SIGTERM)
        assert job.stdout.read() == "saved\n"
    assert job.returncode == 143


def test_ctrl_c_leaves_the_job_running(jobs: Any) -> None:
    printed: list[str] = []
    assert remote.follow(jobs(FakeJobs([ENTRY, KeyboardInterrupt()])), "j", printed.append) == 130
    for line in ("search follow j ", "search status s-1 ", "search stop j ", "search resume s-1 "):
        assert f"{line}--cluster c.yaml" in "\n".join(printed)


def test_a_lost_head_ends_following(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", 0.0)
    gone = FakeJobs([ConnectionError("gone"), ConnectionError("gone"), ""])
    with pytest.raises(UserError, match=r"gone; follow again: search follow j --cluster c.yaml"):
        remote.follow(jobs(gone), "j", lambda text: None)  # noqa: ARG005


def test_an_unknown_job_is_one_line(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJobs([])

    def unknown(name: str) -> None:
        raise RuntimeError(f"Request failed with status code 404: Job {name} does not exist")

    monkeypatch.setattr(fake, "get_job_info", unknown)
    with pytest.raises(UserError, match=r"cluster search: .*Job j does not exist"):
        remote.follow(jobs(fake), "j", lambda text: None)  # noqa: ARG005


def test_start_studies_are_sent_along(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(remote, "submit_and_follow", lambda _, job, *rest, **more: jobs.append(job) or 0)  # noqa: ARG005
    run = ["run", "quickstart", "--cluster", "c.yaml", "--from", "one-1"]
    assert CliRunner().invoke(main, [*run, "--from", "two-1", "-q"]).exit_code == 0
    assert jobs[0].space.search.start == ("one-1", "two-1")
    assert jobs[0].options == ["--quiet"]
    both = CliRunner().invoke(main, [*run, "--set", "search.start=[paper]"])
    assert (both.exit_code, len(jobs)) == (2, 1)
    assert "--from and --set search.start: give one of them" in both.output


def test_the_arguments_of_a_command_are_passed_on_as_typed() -> None:
    seen: list[list[str]] = []

    @click.command()
    @click.argument("study", required=False)
    @click.option("--set", "overrides", multiple=True)
    @click.option("--top", default=3)
    @click.option("--flag", is_flag=True)
    @click.option("--cluster")
    def command(**given: Any) -> None:  # noqa: ARG001
        seen.append(typed_arguments(click.get_current_context(), ("cluster",)))

    command(["--set", "a=1", "--set", "b=2", "s", "--flag", "--cluster", "x"], standalone_mode=False)
    command([], standalone_mode=False)
    assert seen == [["--set=a=1", "--set=b=2", "--flag", "s"], []]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("a: [", "c.yaml"),
        ("name: mine\nmethod: simcse\n", r"expected a Ray cluster file .* no auth, cluster_name, provider"),
    ],
)
def test_an_invalid_cluster_file_is_one_line(user_folder: Path, text: str | None, message: str) -> None:
    if text is not None:
        (user_folder / "c.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_cluster("c.yaml")


def test_a_missing_token_is_rejected(monkeypatch: pytest.MonkeyPatch, user_folder: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(user_folder / "none"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with pytest.raises(UserError, match=r"no token in .*none"):
        use_token("c.yaml")


def test_ssh_uses_key_and_proxy_and_checks_the_host() -> None:
    line = replace(HEAD, proxy="nc %h %p").ssh("-N")
    assert line[-2:] == ["-N", "ubuntu@203.0.113.5"]
    assert "ProxyCommand=nc %h %p" in line
    assert "StrictHostKeyChecking=accept-new" in line
    assert str(Path("~/key.pem").expanduser()) in line


def test_commands_run_in_the_container_of_the_nodes() -> None:
    *_, line = replace(HEAD, container="search").shell("search status")
    assert line == "docker exec search bash -c '. ~/search.env 2>/dev/null; search status'"


def test_the_next_command_is_the_laptops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_FILE, raising=False)
    assert storage_option(absolute("runs")) == ""
    assert storage_option("s3://bucket/x") == " --storage s3://bucket/x"
    assert not out_of_reach("http://127.0.0.1:5000")
    monkeypatch.setenv(CLUSTER_FILE, "c.yaml")
    assert storage_option("s3://bucket/x") == " --cluster c.yaml"
    assert out_of_reach("http://127.0.0.1:5000")
    assert not out_of_reach("https://mlflow.example.org")


def test_commands_on_the_head_get_storage_and_cluster_file(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(remote, "find_head", lambda cluster: HEAD)  # noqa: ARG005
    monkeypatch.setattr(Head, "run", lambda self, line: lines.append(line) or 0)  # noqa: ARG005
    assert CliRunner().invoke(main, ["status", "a study", "--cluster", "my c.yaml"]).exit_code == 0
    assert CliRunner().invoke(main, ["list", "--cluster", "c.yaml", "--storage", "s3://b"]).exit_code == 0
    assert lines[0].startswith('export SEARCH_STORAGE="${SEARCH_STORAGE:-$HOME/runs}"')
    assert lines[0].endswith("export SEARCH_CLUSTER='my c.yaml'; search status 'a study'")
    assert lines[1].endswith("export SEARCH_CLUSTER=c.yaml; search list --storage=s3://b")


class FakeClient:
    """Ray's job client as far as `search stop` needs it: two running jobs, and a newer one that has ended."""

    def __init__(self, running: bool = True, stops: bool = True) -> None:
        self.running, self.stops, self.stopped = running, stops, list[str]()

    def list_jobs(self) -> list[Any]:
        from ray.job_submission import JobStatus

        now = "RUNNING" if self.running else "STOPPED"
        return [
            SimpleNamespace(submission_id=name, metadata=of, status=JobStatus(status), start_time=start)
            for name, of, status, start in (
                ("run-a-1", {"study": "a-1"}, now, 1), ("run-b-1", {"study": "b-1"}, now, 2),
                ("run-c-1", {"study": "c-1"}, "SUCCEEDED", 3), (None, None, "RUNNING", 4),
            )
        ]  # fmt: skip

    def stop_job(self, name: str) -> bool:
        self.stopped.append(name)
        return self.stops


def stop(client: FakeClient, words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    way = SimpleNamespace(head=HEAD, ports={DASHBOARD: 1}, ensure=lambda: None)
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: client)  # noqa: ARG005
    monkeypatch.setattr(remote, "find_head", lambda cluster: HEAD)  # noqa: ARG005
    monkeypatch.setattr(remote, "Tunnel", lambda *_: contextlib.nullcontext(way))
    result = CliRunner().invoke(main, ["stop", *words, "--cluster", "c.yaml"])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "study"), [([], "b-1"), (["a-1"], "a-1"), (["run-a-1"], "a-1")], ids=["newest", "study", "job"]
)
def test_stop_pauses_a_running_job_by_its_name_or_study(
    words: list[str], study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    printed = f"job run-{study} pauses its study; go on with `search resume {study} --cluster c.yaml`\n"
    assert stop(client, words, monkeypatch) == (0, printed)
    assert client.stopped == [f"run-{study}"]


@pytest.mark.parametrize(
    ("words", "client", "printed"),
    [
        (["c-1"], FakeClient(), "job run-c-1 has already ended; go on with `search resume c-1 --cluster c.yaml`"),
        (["run-c-1"], FakeClient(), "job run-c-1 has already ended; go on with `search resume c-1 --cluster c.yaml`"),
        ([], FakeClient(stops=False), "job run-b-1 has already ended; go on with `search resume b-1 --cluster c.yaml`"),
        (["d-1"], FakeClient(), "cluster search: no job or study 'd-1'; running jobs: run-a-1, run-b-1"),
        (["d-1"], FakeClient(running=False), "cluster search: no job or study 'd-1'; running jobs: none"),
        ([], FakeClient(running=False), "cluster search: no job runs there; `search list --cluster c.yaml` lists its"),
    ],
)
def test_stop_of_a_job_that_does_not_run_is_one_line(
    words: list[str], client: FakeClient, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = stop(client, words, monkeypatch)
    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith(printed)
