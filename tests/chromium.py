"""A headless Chromium for tests, driven through its DevTools pipe with the standard library alone."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(FOUND is None, reason="no chromium here; on Debian: apt-get install chromium")
# The browser reads commands from descriptor 3 and writes answers to 4; both are moved away from there first.
_LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE = 60.0  # seconds for one answer; a busy machine starts a browser slowly


class Browser:
    """One tab. Everything that went wrong in it is in `complaints`: exceptions, console errors, failed requests."""

    def __init__(self, profile: Path) -> None:
        assert FOUND is not None
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _LAUNCH, str(commands), str(answers)),
                FOUND,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def open(self, page: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file or an address at a width, in a colour scheme; a width below 600 is a phone."""
        self.complaints.clear()
        self.requests.clear()
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._wait(lambda: self._loaded)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save what is seen, or the whole page, as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a DevTools command and wait for its answer."""
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._wait(lambda: bool(answers), lambda event: answers.append(event) if event.get("id") == number else None)
        assert "error" not in answers[0], (method, answers[0]["error"])
        return answers[0]["result"]

    def _wait(self, done: Any, look: Any = lambda event: None) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"Chromium gave no answer in {_PATIENCE:.0f} s"
            if not select.select([self._read], [], [], 1.0)[0]:
                continue
            chunk = os.read(self._read, 1 << 20)
            assert chunk, f"Chromium ended with {self._process.wait()}"
            *events, self._buffer = (self._buffer + chunk).split(b"\0")
            for event in map(json.loads, events):
                self._note(event)
                look(event)

    def _note(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(found["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{found['entry']['level']}: {found['entry']['text']}")
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(found["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {found['message']}")
            self.send("Page.handleJavaScriptDialog", accept=True)
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
