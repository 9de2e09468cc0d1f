"""MLFLOW_TRACKING_INSECURE_TLS reads a server whose certificate nobody vouches for; without it nothing is read."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from analysis.errors import AnalysisError
from analysis.reading.store import Store


class _Empty(BaseHTTPRequestHandler):
    """An MLflow server without an experiment."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=elsewhere -keyout server.pem -out cert.pem"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    pem.write_bytes(pem.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        uri = f"https://127.0.0.1:{server.server_port}"
        assert Store(uri, {"MLFLOW_TRACKING_INSECURE_TLS": "true"}).count_runs() == 0
        with pytest.raises(AnalysisError, match="CERTIFICATE_VERIFY_FAILED"):
            Store(uri, {}).count_runs()
    finally:
        server.shutdown()
        server.server_close()
