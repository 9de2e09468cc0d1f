"""An MLflow server, read through its REST interface with the standard library."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from analysis.errors import AnalysisError, InputError
from analysis.reading.runs import MetricRow, StoredRun, newest_first, oldest_first
from search.schema import OPENING, PARENT, ROLE, TRIALS_TAG

# The server takes two seconds of a core for a thousand runs, so pages are asked for side by side.
PAGE = 400  # runs per request
PARALLEL = 4  # requests at a time; an MLflow server has four workers unless told otherwise
HISTORY_RUNS = 100  # the server's limit per request
HISTORY_ROWS = 25000  # the server's limit; a full answer may be a cut one
TIMEOUT = 60.0  # seconds without an answer
BUSY = (429, 500, 502, 503, 504)  # what a loaded server or its proxy says once; MLflow's own client asks again as well
PAUSES = (0.2, 1.0, 3.0)  # seconds before it is asked again


class RestStore:
    """See `reading.runs.Store`. Credentials as for MLflow: MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD."""

    def __init__(self, uri: str, environ: Mapping[str, str] | None = None) -> None:
        self.uri = uri.rstrip("/")
        environ = os.environ if environ is None else environ
        self._headers = {"Content-Type": "application/json", **_authorization(environ)}
        self._context: ssl.SSLContext | None = None
        if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
            self._context = ssl.create_default_context()
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        self._names: dict[str, str] | None = None

    def studies(self) -> list[StoredRun]:
        return newest_first(self._search(sorted(self._experiments()), f"tags.`{ROLE}` = 'study'"))

    def trials(self, study: StoredRun) -> list[StoredRun]:
        """As the server has them, most of them from the file that the search left for that (`trials_file`)."""
        ours, children = [study.experiment_id], f"tags.`{PARENT}` = '{study.run_id}'"
        found = self._kept(study)
        if not found:
            found = {run.run_id: run for run in self._search(ours, children)}
        else:
            until = max(run.end or 0 for run in found.values())
            # Before the others: a trial that ends in between is then found by its end.
            now = self._search(ours, f"{children} and attributes.status = 'RUNNING'")
            changed = [f"attributes.end_time > {until}"]
            changed += [f"tags.`{tag}` LIKE '%'" for tag in study.tags if tag.startswith(OPENING)]
            with ThreadPoolExecutor(PARALLEL) as pool:
                gone = pool.submit(self._search, ours, children, "DELETED_ONLY")
                for runs in pool.map(lambda what: self._search(ours, f"{children} and {what}"), changed):
                    now += runs
            found |= {run.run_id: run for run in now}
            for run in gone.result():
                found.pop(run.run_id, None)
        return oldest_first(run for run in found.values() if run.tags.get(ROLE) == "trial")

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[MetricRow]:
        parts = [run_ids[at : at + HISTORY_RUNS] for at in range(0, len(run_ids), HISTORY_RUNS)]
        with ThreadPoolExecutor(PARALLEL) as pool:
            found = pool.map(lambda job: self._history(*job), [(part, metric) for part in parts for metric in metrics])
            rows = [row for answer in found for row in answer]
        return sorted(rows, key=lambda row: row[:3])  # stable: keeps the server's order of time within a step

    def artifact(self, run: StoredRun, path: str) -> bytes | None:
        try:
            return self._get("get-artifact", {"path": path, "run_uuid": run.run_id})
        except AnalysisError:
            return None

    def count_runs(self) -> int:
        body = {"experiment_ids": sorted(self._experiments()), "max_results": 1}
        return len(self._post("runs/search", body).get("runs", [])) if body["experiment_ids"] else 0

    def _history(self, run_ids: Sequence[str], metric: str) -> list[MetricRow]:
        query = [("run_id", run) for run in run_ids] + [("metric_key", metric), ("max_results", str(HISTORY_ROWS))]
        found = json.loads(self._get("ajax-api/2.0/mlflow/metrics/get-history-bulk", query))["metrics"]
        if len(found) >= HISTORY_ROWS and len(run_ids) > 1:
            half = len(run_ids) // 2
            return self._history(run_ids[:half], metric) + self._history(run_ids[half:], metric)
        return [(row["run_id"], metric, int(row["step"]), float(row["value"])) for row in found]

    def _kept(self, study: StoredRun) -> dict[str, StoredRun]:
        """Run id -> trial, of the study's file of ended trials; {} if it has none, or an unreadable one."""
        path = study.tags.get(TRIALS_TAG)
        content = self.artifact(study, path) if path else None
        if content is None:
            return {}
        try:
            rows = [json.loads(line) for line in gzip.decompress(content).splitlines()]
            return {row["run_id"]: StoredRun(experiment=study.experiment, **row) for row in rows}
        except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError):  # cut off, or of another version
            return {}

    def _experiments(self) -> dict[str, str]:
        """Experiment id -> name of all active experiments."""
        if self._names is None:
            pages = self._pages("experiments/search", {"max_results": 1000, "view_type": "ACTIVE_ONLY"})
            self._names = {e["experiment_id"]: e["name"] for page in pages for e in page.get("experiments", [])}
        return self._names

    def _search(self, experiments: Sequence[str], condition: str, view: str = "ACTIVE_ONLY") -> list[StoredRun]:
        if not experiments:
            return []
        names = self._experiments()
        body = {
            "experiment_ids": list(experiments),
            "filter": condition,
            "run_view_type": view,
            "max_results": PAGE,
            "order_by": ["attributes.start_time ASC"],  # runs that start meanwhile come last and move no page
        }
        return [_run(raw, names) for page in self._pages("runs/search", body) for raw in page.get("runs", [])]

    def _pages(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """All pages in order; the first one's token tells how the others are called, so they need not come in turn.

        A token that is not of the known form is followed page by page.
        """
        page = self._post(path, body)
        yield page
        token: str = page.get("next_page_token", "")
        step = _offset(token)
        with ThreadPoolExecutor(PARALLEL) as pool:
            while token:
                at = _offset(token)
                if step is None or at is None:
                    tokens = [token]
                else:
                    tokens = [_token(at + i * step) for i in range(PARALLEL)]
                pages = list(pool.map(lambda t: self._post(path, {**body, "page_token": t}), tokens))
                yield from pages
                token = pages[-1].get("next_page_token", "")

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        content = self._call(f"{self.uri}/api/2.0/mlflow/{path}", json.dumps(body).encode())
        try:
            return dict(json.loads(content))
        except ValueError:
            raise InputError(f"{self.uri} is no MLflow server: {path} answered {content[:60]!r}") from None

    def _get(self, path: str, query: Mapping[str, str] | Sequence[tuple[str, str]]) -> bytes:
        return self._call(f"{self.uri}/{path}?{urlencode(query)}", None)

    def _call(self, url: str, body: bytes | None) -> bytes:
        try:
            return self._answer(urllib.request.Request(url, data=body, headers=self._headers))
        except urllib.error.HTTPError as fault:
            if fault.code in (401, 403):
                raise InputError(f"{self.uri} refused the credentials (HTTP {fault.code})") from None
            what = f"{self.uri} answered HTTP {fault.code} to {url.removeprefix(self.uri).split('?')[0]}"
            raise AnalysisError(f"{what}{_message(fault)}") from None
        except (OSError, http.client.HTTPException, ValueError) as fault:  # no server, no HTTP, no address
            raise AnalysisError(
                f"cannot reach the tracking server {self.uri}: {getattr(fault, 'reason', fault)}"
            ) from None

    def _answer(self, request: urllib.request.Request) -> bytes:
        """The body. Requests here only read, so one that a loaded server refuses or drops is sent again."""
        for pause in PAUSES:
            try:
                return self._once(request)
            except urllib.error.HTTPError as fault:
                if fault.code not in BUSY:
                    raise
            except ConnectionResetError:
                pass
            time.sleep(pause)
        return self._once(request)

    def _once(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=self._context) as answer:
            return bytes(answer.read())


def _offset(token: str) -> int | None:
    """The offset that a page token of MLflow stands for; None if it is of another form."""
    try:
        return int(json.loads(base64.b64decode(token))["offset"])
    except (ValueError, KeyError, TypeError):
        return None


def _token(offset: int) -> str:
    return base64.b64encode(json.dumps({"offset": offset}).encode()).decode()


def _message(fault: urllib.error.HTTPError) -> str:
    """`: what the server says`, its first line; nothing if that is no message of MLflow's."""
    try:
        return f": {json.loads(fault.read())['message'].splitlines()[0][:200]}"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError):
        return ""


def _authorization(environ: Mapping[str, str]) -> dict[str, str]:
    if token := environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    if user := environ.get("MLFLOW_TRACKING_USERNAME"):
        pair = f"{user}:{environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def _run(raw: Mapping[str, Any], names: Mapping[str, str]) -> StoredRun:
    info, data = raw["info"], raw.get("data", {})
    end = info.get("end_time")
    return StoredRun(
        run_id=info["run_id"],
        experiment_id=info["experiment_id"],
        experiment=names.get(info["experiment_id"], ""),
        name=info.get("run_name", ""),
        status=info["status"],
        start=int(info.get("start_time", 0)),
        end=int(end) if end else None,
        artifact_uri=info.get("artifact_uri", ""),
        tags={tag["key"]: tag.get("value", "") for tag in data.get("tags", [])},
        params={param["key"]: param.get("value", "") for param in data.get("params", [])},
        metrics={metric["key"]: float(metric.get("value", 0.0)) for metric in data.get("metrics", [])},
    )
