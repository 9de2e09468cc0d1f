"""A headless Chromium, driven by the WebDriver protocol; the few commands used here need no package."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMEDRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One window."""

    def __init__(self, address: str) -> None:
        self._address = address
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            "binary": CHROMIUM,
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        self._session = (
            "/session/" + self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        )

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            self._address + self._session + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a JavaScript function body returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def until(self, script: str, seconds: float = 30.0) -> Any:
        """The first truthy value of `script`."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.2)
        return value

    def width(self, pixels: int, height: int = 1000) -> None:
        metrics = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def console(self) -> list[str]:
        """What pages have logged since the last time, level and text."""
        return [f"{e['level']} {e['message']}" for e in self._ask("POST", "/se/log", {"type": "browser"})]

    def hosts(self) -> set[str]:
        """Hosts from which the page has loaded anything."""
        script = "return performance.getEntriesByType('resource').map(e => new URL(e.name).host)"
        return set(self.run(script)) - {""}

    def key(self, text: str) -> None:
        down, up = {"type": "keyDown", "value": text}, {"type": "keyUp", "value": text}
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": [down, up]}]})

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def close(self) -> None:
        self._ask("DELETE", "")


@contextmanager
def browser() -> Iterator[Browser]:
    assert CHROMEDRIVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([CHROMEDRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        window = Browser(f"http://127.0.0.1:{port}")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()
