"""What goes to a cluster and how its job is followed, without a cluster."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from harness import make_space

from search.cli.cluster import typed_arguments
from search.cli.main import main
from search.remote import bundle, tunnel
from search.remote import jobs as remote
from search.remote.backup import out_of_reach
from search.remote.bundle import bundled_name, make_bundle
from search.remote.jobs import mismatches, own_output
from search.remote.tunnel import DASHBOARD, Head, read_cluster
from search.space import Space, load_space
from search.store.layout import CLUSTER_FILE, UserError, absolute, storage_option

HEAD = Head(Path("c.yaml"), "search", "203.0.113.5", "ubuntu", "~/key.pem")


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    return tmp_path


def with_data(train: str, dev: tuple[str, ...] = ("stsb",), encoder: str = "builtin:tiny") -> Space:
    space = make_space()
    return replace(space, encoder=encoder, data=replace(space.data, train=train, dev=dev))


def test_a_bundle_runs_by_itself(user_folder: Path) -> None:
    target = user_folder / "job"
    target.mkdir()
    assert make_bundle(target, make_space()) == {}
    done = subprocess.run(
        [sys.executable, "-m", "search", "check", "space.yaml"],
        cwd=target,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(target.rglob("*.pyc")) or done.stdout  # what was copied holds no caches
    assert load_space(target / "space.yaml").resolved() == make_space().resolved()


def test_folders_of_data_travel(user_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    away = tmp_path_factory.mktemp("away") / "parts"
    for folder, name in ((away, "a.parquet"), (user_folder / "beir", "corpus.jsonl")):
        folder.mkdir()
        (folder / name).write_text("")
    target = user_folder / "job"
    target.mkdir()
    make_bundle(target, with_data(str(away), ("./beir",)))
    assert (target / "carried" / "parts" / "a.parquet").is_file()
    assert (target / "beir" / "corpus.jsonl").is_file()
    written = (target / "space.yaml").read_text()
    assert "train: carried/parts" in written
    assert "./beir" in written


def test_local_files_travel_and_keep_their_meaning(
    user_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (user_folder / "data").mkdir()
    (user_folder / "data" / "mine.txt").write_text("a\nb\n")
    for split in ("dev", "test"):
        (elsewhere / f"pairs_{split}.tsv").write_text("sentence1\tsentence2\tscore\n")
    (elsewhere / "encoder").mkdir()
    (elsewhere / "encoder" / "config.json").write_text("{}")
    named = tmp_path_factory.mktemp("named")
    (named / "en_stsb_dev.tsv").write_text("x")
    (named / "en_sick_dev.tsv").write_text("not asked for")
    monkeypatch.setenv("SEARCH_DATA_DIR", str(named))
    pairs = f"{elsewhere}/pairs_{{split}}.tsv"
    space = with_data("data/mine.txt", ("stsb", pairs), encoder=str(elsewhere / "encoder"))
    target = user_folder / "job"
    target.mkdir()

    assert make_bundle(target, space) == {"SEARCH_DATA_DIR": "carried"}
    carried = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} - {
        str(p.relative_to(target)) for package in bundle.PACKAGES for p in (target / package).rglob("*")
    }
    assert carried == {
        "space.yaml", "data/mine.txt", "carried/pairs_dev.tsv", "carried/pairs_test.tsv",
        "carried/encoder/config.json", "carried/en_stsb_dev.tsv",
    }  # fmt: skip
    sent = (target / "space.yaml").read_text()
    assert "train: data/mine.txt" in sent
    assert "carried/pairs_{split}.tsv" in sent
    assert "encoder: carried/encoder" in sent
    assert str(elsewhere) not in sent


def test_files_that_only_the_nodes_have_stay_as_written(user_folder: Path) -> None:
    target = user_folder / "job"
    target.mkdir()
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


def test_what_is_missing_too_large_or_ambiguous_is_one_line(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, folder in enumerate(("one", "two", "job0", "job1", "job2")):
        (user_folder / folder).mkdir()
        (user_folder / folder / "same.txt").write_text(str(number)) if number < 2 else None
    with pytest.raises(UserError, match=r"--carry nowhere.txt: no such file"):
        make_bundle(user_folder / "job0", None, ["nowhere.txt"])
    monkeypatch.chdir(user_folder / "job0")
    with pytest.raises(UserError, match=r"would both be carried/same.txt on the cluster; rename one"):
        make_bundle(user_folder / "job1", None, ["../one/same.txt", "../two/same.txt"])
    monkeypatch.setattr(bundle, "LIMIT_MIB", 1)
    (user_folder / "job0" / "large.bin").write_bytes(b"0" * 3 * 2**20)
    with pytest.raises(UserError, match=r"at most 1 MiB, got \d+ MiB; the largest: large.bin \(3 MiB\).*file_mounts"):
        make_bundle(user_folder / "job2", None, ["large.bin"])


def test_versions_that_differ_are_named_and_build_tags_are_not() -> None:
    here = {
        "python": "3.11.7",
        "ray": "2.60.0",
        "torch": "2.13.0+cpu",
        "contrastive-search": "0.1.0",
        "mlflow": "3.17.2",
    }
    there = {**here, "python": "3.11.2", "torch": "2.13.0+cu128"}
    assert mismatches(here, there) == []
    there |= {"python": "3.12.1", "ray": "2.59.1", "mlflow": None}
    assert mismatches(here, there) == [
        "python: 3.11.7 here, 3.12.1 there",
        "ray: 2.60.0 here, 2.59.1 there",
        "mlflow: 3.17.2 here, not installed there",
    ]


def test_a_mismatch_stops_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "output", lambda self, command: '{"python": "3.11.0", "ray": "1.0"}')  # noqa: ARG005
    with pytest.raises(UserError, match=r"ray: .* here, 1.0 there.*ray up c.yaml.*--allow-mismatch"):
        remote.check_versions(HEAD, False, lambda text: None)  # noqa: ARG005
    said: list[str] = []
    remote.check_versions(HEAD, True, said.append)
    assert "1.0 there" in said[0]


class FakeJobs:
    """Ray's job API: a log that grows with every look, an end, a head that is sometimes away."""

    def __init__(self, looks: list[Any], end: str = "SUCCEEDED", code: int | None = 0) -> None:
        self.looks, self.end, self.code, self.log = looks, end, code, ""

    def get_job_info(self, name: str) -> Any:
        from ray.job_submission import JobStatus

        look = self.looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        self.log += look
        status = JobStatus.RUNNING if self.looks else JobStatus(self.end)
        code = None if self.looks else self.code
        return SimpleNamespace(
            status=status, driver_exit_code=code, message="why", submission_id=name, metadata={"study": "s-1"}
        )

    def get_job_logs(self, name: str) -> str:  # noqa: ARG002
        return self.log


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(fake: FakeJobs) -> Any:
        monkeypatch.setattr(remote, "_client", lambda way: fake)  # noqa: ARG005
        monkeypatch.setattr(remote, "POLL_S", 0.0)
        return SimpleNamespace(head=HEAD, ports={DASHBOARD: 1}, ensure=lambda: None)

    return use


ENTRY = "Runtime env is setting up.\nRunning entrypoint for job j: bash\n"


def test_a_log_is_printed_once_in_whole_lines_through_lost_connections(jobs: Any) -> None:
    said: list[str] = []
    looks = [ENTRY, "one\ntw", ConnectionError("gone"), "o\n", "three"]
    assert remote.follow(jobs(FakeJobs(looks)), "j", said.append) == 0
    assert said == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("end", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0), ("FAILED", 1, 1), ("FAILED", 2, 2), ("FAILED", 130, 130), ("FAILED", None, 1),
        ("STOPPED", 0, 130),
    ],
)  # fmt: skip
def test_the_drivers_exit_code_is_ours(jobs: Any, end: str, code: int | None, expected: int) -> None:
    assert remote.follow(jobs(FakeJobs([ENTRY, "x\n"], end, code)), "j", lambda text: None) == expected  # noqa: ARG005


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(jobs: Any) -> None:
    said: list[str] = []
    fake = FakeJobs([ENTRY, KeyboardInterrupt(), "", ""])
    assert remote.follow(jobs(fake), "j", said.append) == 130
    for line in ("search follow j ", "search status s-1 ", "search stop j ", "search resume s-1 "):
        assert f"{line}--cluster c.yaml" in said[-1]


def test_a_head_that_stays_away_ends_following_with_the_way_back(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", 0.0)
    with pytest.raises(UserError, match=r"gone; follow again: search follow j --cluster c.yaml"):
        remote.follow(jobs(FakeJobs([ConnectionError("gone")] * 3)), "j", lambda text: None)  # noqa: ARG005


def test_rays_first_lines_are_left_out() -> None:
    assert own_output("Runtime env is setting up.\n") == ""
    assert own_output(ENTRY + "a\n") == "a\n"


def test_what_a_new_study_starts_from_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(remote, "submit_and_follow", lambda _, job, *rest, **more: sent.append(job) or 0)  # noqa: ARG005
    run = ["run", "quickstart", "--cluster", "c.yaml", "--from", "one-1"]
    assert CliRunner().invoke(main, [*run, "--from", "two-1", "-q"]).exit_code == 0
    assert sent[0].space.search.start == ("one-1", "two-1")
    assert sent[0].arguments == ("--quiet",)
    both = CliRunner().invoke(main, [*run, "--set", "search.start=[paper]"])
    assert (both.exit_code, len(sent)) == (2, 1)
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
def test_a_cluster_file_that_is_none_is_said(user_folder: Path, text: str | None, message: str) -> None:
    if text is not None:
        (user_folder / "c.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_cluster("c.yaml")


def test_without_token_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, user_folder: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(user_folder / "none"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with pytest.raises(UserError, match=r"no token in .*none"):
        tunnel.use_token("c.yaml")


def test_ssh_uses_the_files_key_and_proxy_and_checks_the_host() -> None:
    line = replace(HEAD, proxy="nc %h %p").ssh("-N")
    assert line[-2:] == ["-N", "ubuntu@203.0.113.5"]
    assert "ProxyCommand=nc %h %p" in line
    assert "StrictHostKeyChecking=accept-new" in line
    assert str(Path("~/key.pem").expanduser()) in line


def test_the_next_command_is_the_laptops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_FILE, raising=False)
    assert storage_option(absolute("runs")) == ""
    assert storage_option("s3://bucket/x") == " --storage s3://bucket/x"
    assert not out_of_reach("http://127.0.0.1:5000")
    monkeypatch.setenv(CLUSTER_FILE, "c.yaml")
    assert storage_option("s3://bucket/x") == " --cluster c.yaml"
    assert out_of_reach("http://127.0.0.1:5000")
    assert not out_of_reach("https://mlflow.example.org")


def test_a_command_on_the_head_gets_its_storage_and_the_cluster_file(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(remote, "find_head", lambda cluster: HEAD)  # noqa: ARG005
    monkeypatch.setattr(Head, "run", lambda self, line: lines.append(line) or 0)  # noqa: ARG005
    remote.remote_command("my c.yaml", "status", ["a study"])
    remote.remote_command("c.yaml", "backup", ["--storage", "s3://b"])
    assert lines[0].endswith("export SEARCH_CLUSTER='my c.yaml'; search status --storage \"$SEARCH_STORAGE\" 'a study'")
    assert lines[1].endswith("export SEARCH_CLUSTER=c.yaml; search backup --storage s3://b")
