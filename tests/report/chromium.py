"""Drive a headless Chromium over the DevTools protocol, through a pipe: the standard library is enough."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from fcntl import F_DUPFD, fcntl
from pathlib import Path
from typing import Any

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
)
#: Seconds to wait for one answer.
_PATIENCE = 20.0


class Chromium:
    """One browser with one tab; ``events`` collects what it reports without being asked."""

    def __init__(self, profile: Path) -> None:
        assert FOUND is not None, "there is no Chromium"
        (theirs, self._commands), (self._answers, their_answers) = os.pipe(), os.pipe()

        def descriptors() -> None:
            # The browser expects its pipe at 3 and 4, which may be taken by either end.
            for copy, number in [(fcntl(end, F_DUPFD, 10), n) for n, end in ((3, theirs), (4, their_answers))]:
                os.dup2(copy, number)

        self._process = subprocess.Popen(
            [FOUND, *_SWITCHES, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=descriptors,
            pass_fds=(3, 4),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs), os.close(their_answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]  # type: ignore[no-any-return]
            self.events.append(answer)
        raise TimeoutError(method)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], _PATIENCE)[0]:
                raise TimeoutError("the browser is silent")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise EOFError("the browser ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def open(self, file: Path, width: int, dark: bool, height: int = 900) -> None:
        """Show a file in a window of this size and colour scheme; ``events`` starts anew."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=file.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.evaluate("1")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def close(self) -> None:
        self._session = ""
        try:
            self.call("Browser.close")
        except (EOFError, OSError, TimeoutError):
            pass
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands), os.close(self._answers)
