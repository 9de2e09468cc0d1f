"""Files that change under a study: its data and its encoder are what they were when it began, or nothing runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import World, make_space
from rich.console import Console

from search.running.preflight import check_files
from search.running.runner import Options, confirm_study, resume_study
from search.store.journal import Journal
from search.store.layout import UserError
from search.store.ledger import Ledger
from trainables.data.checks import data_revisions

PAIRS = "sentence1\tsentence2\tscore\na cat\ta dog\t1\na cat\ta cat\t5\na dog\tdogs\t4\n"
QUIET = Options(console=Console(quiet=True), handle_signals=False)


def retrieval_set(folder: Path) -> str:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "a cat"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "cats"}\n')
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    return str(folder)


def test_study_with_changed_dev_pairs_is_neither_resumed_nor_confirmed(tmp_path: Path) -> None:
    """Values of then and now were ranked beside each other."""
    dev = tmp_path / "mine_dev.tsv"
    dev.write_text(PAIRS)
    data = {"train": "builtin", "dev": [str(dev)], "language": "en"}
    space = make_space({"trials": 3}, data=data, metric={"name": "mine_dev"})
    world = World(space, tmp_path)
    world.session()
    journal = Journal(world.folder.journal, Ledger())
    check_files(space, journal)
    journal.close()
    dev.write_text(PAIRS.replace("\t5", "\t0"))
    before = world.folder.journal.read_bytes()
    told = rf"changed since the study began: data.dev {dev} \(sha256:\w+ is now"
    for goes_on in (resume_study, confirm_study):
        with pytest.raises(UserError, match=told) as raised:
            goes_on(str(tmp_path), options=QUIET)
        assert "\n" not in str(raised.value)
    assert world.folder.journal.read_bytes() == before
    dev.write_text(PAIRS)
    assert resume_study(str(tmp_path), options=QUIET).status == "finished"


def test_study_whose_data_are_gone_is_neither_resumed_nor_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials failed one by one, and a named set was read from the hub instead."""
    dev = tmp_path / "mine_dev.tsv"
    for path in (dev, tmp_path / "en_stsb_dev.tsv"):
        path.write_text(PAIRS)
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path))
    data = {"train": "builtin", "dev": ["stsb", str(dev)], "language": "en"}
    space = make_space({"trials": 3}, data=data)
    world = World(space, tmp_path)
    world.session()
    journal = Journal(world.folder.journal, Ledger())
    check_files(space, journal)
    journal.close()
    before = world.folder.journal.read_bytes()
    dev.rename(tmp_path / "elsewhere")
    monkeypatch.delenv("SEARCH_DATA_DIR")
    for goes_on in (resume_study, confirm_study):
        with pytest.raises(UserError) as raised:
            goes_on(str(tmp_path), options=QUIET)
        gone, carry = "is not on this machine any more;", "(or --carry FILE on a cluster)"
        assert str(raised.value).splitlines() == [
            f"data.dev stsb: {gone} set SEARCH_DATA_DIR to the folder that had it {carry}",
            f"data.dev {dev}: {gone} put it back into {tmp_path} {carry}",
        ]
        assert raised.value.exit_code == 2
    assert world.folder.journal.read_bytes() == before
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path))
    (tmp_path / "elsewhere").rename(dev)
    assert resume_study(str(tmp_path), options=QUIET).status == "finished"


PARAMS = {"learning_rate": {"float": [1e-5, 1e-3]}, "false_negatives": "margin"}
DATA = {"train": "builtin", "dev": ["stsb"], "language": "en"}
ROLES: dict[str, Callable[[str], dict[str, Any]]] = {
    "encoder": lambda folder: {"encoder": folder},
    "guide": lambda folder: {"method": "pairs", "params": PARAMS | {"guide": folder}},
    "searched guide": lambda folder: {"method": "pairs", "params": PARAMS | {"guide": {"choice": [None, folder]}}},
    "miner": lambda folder: {"method": "pairs", "params": PARAMS, "data": DATA | {"mine": {"encoder": folder}}},
}


@pytest.mark.parametrize("role", ROLES)
def test_an_encoder_that_was_written_over_is_another_one(role: str, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    space = make_space(**ROLES[role](str(encoder)))
    (encoder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (encoder / "model.safetensors").write_bytes(b"weights")
    journal = Journal(tmp_path / "tracking.jsonl", Ledger())
    check_files(space, journal)
    check_files(space, journal)
    assert len((tmp_path / "tracking.jsonl").read_text().splitlines()) == 1  # what is known is not reported again
    (encoder / "model.safetensors").write_bytes(b"others!")
    with pytest.raises(UserError, match=f"{'guide' if role != 'encoder' else role} {encoder}"):
        check_files(space, journal)
    shutil.rmtree(encoder)
    with pytest.raises(UserError, match=f"{encoder}: is not on this machine any more; put it back into {tmp_path} "):
        check_files(space, journal)


@pytest.mark.parametrize(
    "unread", ["mine_dev.tsv", "few/corpus.jsonl", "encoder/vocab.txt", "encoder/model.safetensors"]
)
def test_a_file_that_may_not_be_read_is_one_line(unread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, dev, opened = tmp_path / "encoder", tmp_path / "mine_dev.tsv", Path.open
    encoder.mkdir()
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (encoder / name).write_text("{}")
    dev.write_text(PAIRS)
    data = {"train": "builtin", "dev": [str(dev), retrieval_set(tmp_path / "few")], "language": "en"}
    space = make_space(data=data, metric={"name": "mine_dev"})
    object.__setattr__(space, "encoder", str(encoder))

    def denied(path: Path, *args: Any, **how: Any) -> Any:
        if path == tmp_path / unread:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **how)

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(UserError) as raised:
        check_files(space, Journal(tmp_path / "tracking.jsonl", Ledger()))
    told = f"cannot read a file that trials need: [Errno 13] Permission denied: '{tmp_path / unread}'. Nothing was run"
    assert str(raised.value) == told


def test_an_encoder_of_the_hub_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs add files of it to the cache; and another commit may hold the same files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--org--name"

    def at(commit: str, **more: str) -> None:
        (folder := cached / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        for name, text in {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights", **more}.items():
            (folder / name).write_text(text)
        (cached / "refs").mkdir(exist_ok=True)
        (cached / "refs" / "main").write_text(commit)

    space = make_space()
    object.__setattr__(space, "encoder", "org/name")
    first, readme, other = "a" * 40, "b" * 40, "c" * 40
    at(first)
    journal = Journal(tmp_path / "tracking.jsonl", Ledger())
    check_files(space, journal)
    known = dict(journal.ledger.files or {})
    at(first, **{"vocab.txt": "more"})
    check_files(space, journal)
    at(readme, **{"README.md": "About it"})
    check_files(space, journal)
    at(other, **{"vocab.txt": "others"})
    with pytest.raises(
        UserError, match=r"encoder org/name \(\w+\+\w+ or commit aaaaaaaaaaaa is now \w+\+\w+ or commit c"
    ):
        check_files(space, journal)

    older = Journal(tmp_path / "older.jsonl", Ledger())  # of a version that stored no commits
    older.append("files", 0.0, revisions={name: revision.split(" or ")[0] for name, revision in known.items()})
    at(readme)
    check_files(space, older)

    shutil.rmtree(cached)  # the hub has it still
    check_files(space, journal)


def test_only_existing_files_that_can_change_have_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path))
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "en_stsb_dev.tsv").write_text(PAIRS)
    folder = retrieval_set(tmp_path / "few")
    names = {"dev": ["builtin", "stsb", folder, "sickr", "NanoNQ", str(tmp_path / "gone.tsv")], "language": "en"}
    found = data_revisions({"train": f"{tmp_path}/a.txt+builtin", **names})
    assert list(found) == [f"data.train {tmp_path}/a.txt", "data.dev stsb", f"data.dev {folder}"]
    (tmp_path / "few" / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t2\n")
    now = data_revisions({"train": f"{tmp_path}/a.txt+builtin", **names})
    assert [name for name in found if found[name] != now[name]] == [f"data.dev {folder}"]
