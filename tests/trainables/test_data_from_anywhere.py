"""Training data from folders of Parquet, Arrow, CSV and JSON-lines files, and from a hub at a pinned commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet

from trainables.contract.errors import DataError
from trainables.data.checks import check_data
from trainables.data.sets import load_corpus

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"q": f"question {i}", "a": f"answer {i}", "n": f"other {i}"} for i in range(6)]
COLUMNS = {"anchor": "q", "positive": "a", "negative": "n"}


def write(path: Path, rows: list[dict[str, str]]) -> None:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".csv":
        arrow_csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)


@pytest.fixture(params=[".parquet", ".arrow", ".csv", ".jsonl"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    for part in (0, 1):
        write(tmp_path / "set" / f"train-{part}{request.param}", ROWS[3 * part : 3 * part + 3])
    (tmp_path / "set" / "dataset_info.json").write_text("{}")
    return tmp_path / "set"


def test_a_folder_is_one_corpus(folder: Path) -> None:
    corpus = load_corpus(str(folder), "en", "triplets", COLUMNS)
    assert corpus.columns == {role: [row[name] for row in ROWS] for role, name in COLUMNS.items()}
    data = {"train": str(folder), "dev": ["builtin"], "language": "en", "columns": COLUMNS}
    assert check_data({"method": "simcse_sup", "data": data}) == []
    starred = load_corpus(f"{folder}/train-*{next(folder.glob('train*')).suffix}", "en", "triplets", COLUMNS)
    assert (starred.columns, starred.revision) == (corpus.columns, corpus.revision)
    next(folder.glob("train-1*")).unlink()
    assert load_corpus(str(folder), "en", "triplets", COLUMNS).revision != corpus.revision
    with pytest.raises(DataError, match=r"train-0.*expected a column anchor or sent0"):
        load_corpus(str(folder), "en", "triplets")


def test_a_folder_of_several_kinds_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files of one kind of .*, got none"):
        load_corpus(str(tmp_path), "en")
    write(tmp_path / "a.csv", ROWS)
    write(tmp_path / "b.jsonl", ROWS)
    with pytest.raises(DataError, match=r"got \.csv and \.jsonl"):
        load_corpus(str(tmp_path), "en")
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.arrow").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"b\.arrow: cannot be read as an Arrow stream"):
        load_corpus(str(tmp_path / "b.arrow"), "en")


FILE = "triplet/train-00000-of-00001.parquet"


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that a pinned download needs, of one repository with one file."""

    content = b""
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(b"", {"Content-Length": str(len(self.content)), "X-Repo-Commit": COMMIT, "ETag": '"e1"'})

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if "/resolve/" in self.path:
            return self.answer(self.content, {"X-Repo-Commit": COMMIT, "ETag": '"e1"'})
        about = {"id": "org/set", "sha": COMMIT, "siblings": [{"rfilename": FILE}, {"rfilename": "README.md"}]}
        tree = [{"type": "file", "path": FILE, "size": len(self.content), "oid": "e1"}]
        return self.answer(json.dumps(tree if "/tree/" in self.path else about).encode(), {})

    def answer(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.mark.costly
def test_a_pinned_table_of_a_hub_then_offline_from_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", ROWS)
    Hub.content, Hub.asked = (tmp_path / "x.parquet").read_bytes(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"hub:org/set@{COMMIT}:triplet:train"
    script = (
        "from trainables.data.sets import load_corpus\n"
        "from trainables.contract.errors import DataError\n"
        f"try:\n  c = load_corpus({name!r}, 'en', 'triplets', {COLUMNS!r})\n"
        "  print(len(c), c.columns['anchor'][5], c.revision)\n"
        "except DataError as e: print(e)"
    )

    def loaded(cache: str) -> str:
        where = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / cache)}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "http", "HTTP"))}
        found = subprocess.run(
            [sys.executable, "-c", script], env=kept | where | {"HF_HUB_DISABLE_XET": "1"}, cwd=ROOT,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found.stdout.strip()

    wanted = f"6 question 5 org/set@{COMMIT}"
    assert loaded("first") == wanted
    assert any(path.endswith(FILE) for path in Hub.asked)
    server.shutdown()
    server.server_close()
    assert loaded("first") == wanted  # from the cache, nobody answers any more
    message = loaded("second")
    assert message.startswith("data set hub:org/set@0123456789ab: not in the cache, and from the hub: ")
    assert "\n" not in message
