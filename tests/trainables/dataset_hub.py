"""A hub on this machine with one data set repository: what a pinned download requests of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Hub(ThreadingHTTPServer):
    """files: path -> content; requests: their paths."""

    def __init__(self, repo: str, commit: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repo, self.commit, self.files, self.requests = repo, commit, files, list[str]()


@contextmanager
def dataset_hub(repo: str, commit: str, files: Mapping[str, bytes]) -> Iterator[Hub]:
    server = Hub(repo, commit, files)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def run_with_hub(hub: Hub, script: str, cache: Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A Python program whose hub this is; cache: where its downloads stay."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "http", "HTTP", "SEARCH_DATA_DIR"))}
    env |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env=env | {"PYTHONPATH": str(ROOT)}, cwd=cwd, capture_output=True, text=True, timeout=120
    )


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub = self.server
        hub.requests.append(self.path)
        head = {"X-Repo-Commit": hub.commit}
        if "/resolve/" in self.path:
            name, content = next((name, content) for name, content in hub.files.items() if self.path.endswith(name))
            return self.answer(content, head | {"ETag": f'"{hash(name)}"'})
        if not self.path.startswith(f"/api/datasets/{hub.repo}/"):
            return self.send_error(404)
        if "/tree/" in self.path:
            tree = [{"type": "file", "path": f, "size": len(c), "oid": f"{hash(f)}"} for f, c in hub.files.items()]
            return self.answer(json.dumps(tree).encode(), head)
        siblings = [{"rfilename": name} for name in (*hub.files, "README.md")]
        return self.answer(json.dumps({"id": hub.repo, "sha": hub.commit, "siblings": siblings}).encode(), head)

    do_HEAD = do_GET

    def answer(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""
