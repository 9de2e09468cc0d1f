"""A model hub on this machine: the part of its interface by which huggingface_hub makes, fills and reads repositories.

Large files go the way of git LFS (a batch of addresses, one PUT each, checked by size and SHA-256), others inside the
commit, as the hub does it for clients without its own chunked storage.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "x" * 34
USER = "me"
LARGE = (".safetensors", ".bin", ".npy")
COMMIT = "f" * 40


class HubServer(ThreadingHTTPServer):
    """repositories: name -> {"private": bool, "files": path -> bytes}; large: SHA-256 -> bytes; requests: received."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, Any]] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        if not self._allowed():
            return
        if self.path.startswith("/api/whoami-v2"):
            self._json({"name": USER, "type": "user"})
        elif self.path.startswith("/api/models/"):
            name = "/".join(self.path.split("?")[0].split("/")[3:5])
            found = self.server.repositories.get(name)
            if found is None:
                self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            if "/tree/" in self.path:
                listed = found["files"].items()
                self._json([{"type": "file", "path": path, "size": len(c), "oid": COMMIT} for path, c in listed])
                return
            files = [{"rfilename": path} for path in found["files"]]
            self._json({"id": name, "sha": COMMIT, "private": found["private"], "siblings": files})
        elif "/resolve/" in self.path:
            name, _, rest = self.path[1:].partition("/resolve/")
            self._file(self.server.repositories.get(name, {"files": {}})["files"].get(rest.partition("/")[2]))
        else:
            self._json({"error": "no such thing"}, 404)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        body, name = self._body(), self.path.rsplit("/", 1)[-1]
        self.server.requests.append(f"PUT {self.path}")
        if hashlib.sha256(body).hexdigest() != name:
            self._json({"error": "the content is another"}, 422)
            return
        self.server.large[name] = body
        self._json({})

    def do_POST(self) -> None:
        body = self._body()
        self.server.requests.append(f"POST {self.path}")
        if not self._allowed():
            return
        if self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(LARGE) else "regular",
                 "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]  # fmt: skip
            self._json({"files": files})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            addresses = [
                {**o, "actions": {"upload": {"href": f"{self.server.url}/large/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": addresses})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines() if line.strip()])
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        else:
            self._json({"error": f"no such thing: {self.path}"}, 404)

    def _create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted.get('organization') or USER}/{wanted['name']}"
        if name.split("/")[0] != USER:
            self._json({"error": f"You don't have the rights to create a model under {name.split('/')[0]}"}, 403)
        elif name in self.server.repositories:
            self._json({"error": "You already created this model repo", "url": f"{self.server.url}/{name}"}, 409)
        else:
            private = wanted.get("private", wanted.get("visibility") == "private")
            self.server.repositories[name] = {"private": private, "files": {}}
            self._json({"url": f"{self.server.url}/{name}", "id": name})

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        name = "/".join(self.path.split("/")[3:5])
        files = self.server.repositories[name]["files"]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        self._json({"success": True, "commitOid": COMMIT, "commitUrl": f"{self.server.url}/{name}/commit/{COMMIT}"})

    def _allowed(self) -> bool:
        if self.headers.get("authorization") == f"Bearer {TOKEN}":
            return True
        self._json({"error": "Invalid user token."}, 401)
        return False

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _file(self, content: bytes | None) -> None:
        if content is None:
            self._json({"error": "no such file"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""
