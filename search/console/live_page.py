"""A page that follows a running study: one file without a build step, served on the loopback, loading nothing else.

Reading is open to whoever is on this machine; stopping needs the token that `search ui` prints (in the address's
fragment, which browsers do not send).
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from search.console.display import cells, importance
from search.console.status import StudyReader, check_driven_here, log_lines, study_status
from search.space import SpaceError
from search.store.layout import UserError, absolute, find_study, studies
from search.wording import best_trials, headline, leading

ROWS, CURVES = 30, 60  # of each state in the table, the best; learning curves that are drawn
VERDICT_S = 120  # how long `analysis best` may take
TOKEN_HEADER = "X-Search-Token"


def state(reader: StudyReader, now_ms: int) -> dict[str, Any]:
    """All that the page shows of a study, as JSON data. Values are times 100."""
    status, space, ledger = study_status(reader)
    running, waiting = leading(ledger, "running", ROWS), leading(ledger, "paused", ROWS)
    at_work = status.state == "running"
    baselines = [record for record in ledger.trials.values() if record.trial.baseline]
    ended = best_trials(ledger, ROWS)
    ended += [record for record in baselines if not record.open and record not in ended]
    shown = [*running[0], *waiting[0], *ended]
    best = ledger.best.trial.id if ledger.best else None
    names = list(space.params)
    drawn = [record.trial.id for record in [*ended, *running[0], *waiting[0]][:CURVES]]
    return {
        "status": asdict(status) | {"failed": dict(status.failed)},
        "headline": headline(space, ledger, now_ms if status.state == "running" else 0),
        "metric": space.metric.name,
        "params": names,
        "order": importance(names),
        "rows": [
            {**cells(record, names, best, {}), "running": at_work and record.state == "running"} for record in shown
        ],
        "not_shown": {"running": running[1], "paused": waiting[1]},
        "curves": {
            trial: [(examples, round(100 * value, 3)) for examples, value in reader.curves.get(trial, ())]
            for trial in drawn
        },
        "best": best,
        "baseline": [record.trial.id for record in baselines],
        "failures": reader.failures,
    }


class LivePage:
    """The server. Attributes: url: to open, token included; close ends it."""

    def __init__(self, storage: str, study: str | None, port: int) -> None:
        self._storage, self._study = absolute(storage), study
        self._readers: dict[str, StudyReader] = {}
        self._reading = threading.Lock()  # browsers ask in several threads
        self.token = secrets.token_urlsafe(24)
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the name that http.server calls
                page._get(self)

            def do_POST(self) -> None:
                page._post(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the terminal is the user's."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._hosts = {f"{name}:{self._server.server_port}" for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{self._server.server_port}/#{self.token}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="live page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if request.headers.get("Host") not in self._hosts:  # another site's name that leads here
            return _answer(request, HTTPStatus.FORBIDDEN, "text/plain", "wrong host")
        try:
            if parts.path == "/":
                nonce = secrets.token_urlsafe(12)
                text = files("search.console").joinpath("live.html").read_text(encoding="utf-8")
                return _answer(request, HTTPStatus.OK, "text/html", text.replace("NONCE", nonce), nonce)
            name = query.get("study") or self._study
            if parts.path == "/state":
                folder = find_study(self._storage, name)
                names = [each.study for each in reversed(studies(self._storage))]
                with self._reading:
                    reader = self._readers.setdefault(folder.study, StudyReader(folder))
                    shown = state(reader, int(time.time() * 1000))
                return _json(request, {**shown, "studies": names})
            if parts.path == "/log":
                return _json(request, {"lines": log_lines(self._storage, name, query.get("trial"))})
            if parts.path == "/verdict":
                return _json(request, {"text": self._verdict(find_study(self._storage, name).study)})
        except (UserError, SpaceError) as error:
            return _json(request, {"error": str(error)}, HTTPStatus.CONFLICT)
        return _answer(request, HTTPStatus.NOT_FOUND, "text/plain", "not here")

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        given = request.headers.get(TOKEN_HEADER, "")
        known = request.headers.get("Host") in self._hosts and secrets.compare_digest(given, self.token)
        if not known or request.path != "/stop":
            return _json(
                request, {"error": "stopping needs the address that `search ui` printed"}, HTTPStatus.FORBIDDEN
            )
        try:
            wanted = json.loads(request.rfile.read(min(int(request.headers.get("Content-Length") or 0), 10_000)))
            folder = find_study(self._storage, str(wanted["study"]))
            status, _, ledger = study_status(folder)
            trial = wanted.get("trial")
            check_driven_here(folder, status)
            if trial is not None and (trial not in ledger.open_trials or ledger.open_trials[trial].state != "running"):
                raise UserError(f"trial {trial} is not running")
            folder.ask_to_stop(trial)
        except UserError as error:
            return _json(request, {"error": str(error)}, HTTPStatus.CONFLICT)
        except (ValueError, KeyError, TypeError):
            return _json(request, {"error": "expected JSON with study and trial"}, HTTPStatus.BAD_REQUEST)
        return _json(request, {"answer": "it ends at its next evaluation" if trial else "the study pauses"})

    def _verdict(self, study: str) -> str:
        """The output of `analysis best`, a program of its own; never that of a module in the user's folder (`-P`).

        Raises: UserError when it takes too long.
        """
        command = [sys.executable, "-P", "-m", "analysis", "best", study, "--storage", self._storage]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=VERDICT_S, check=False)
        except subprocess.TimeoutExpired:
            raise UserError(f"analysis best {study}: no answer in {VERDICT_S} s; run it in a terminal") from None
        return (done.stdout or done.stderr).strip()


def _json(request: BaseHTTPRequestHandler, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
    _answer(request, status, "application/json", json.dumps(content, ensure_ascii=False))


def _answer(request: BaseHTTPRequestHandler, status: HTTPStatus, kind: str, text: str, nonce: str = "") -> None:
    data = text.encode()
    request.send_response(status)
    request.send_header("Content-Type", f"{kind}; charset=utf-8")
    request.send_header("Content-Length", str(len(data)))
    request.send_header("Cache-Control", "no-store")
    request.send_header("Referrer-Policy", "no-referrer")
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'"
    )
    request.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'; base-uri 'none'")
    request.end_headers()
    request.wfile.write(data)
