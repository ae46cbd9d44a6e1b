"""A real Chromium without a window, driven through its debugging protocol over two pipes; no package is needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 30


class Page:
    """One tab. What it fetched and what it complained about is kept."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._number, self._left, self._session = 0, b"", ""
        #: Addresses that were fetched, and messages of the console, uncaught errors and the content policy.
        self.fetched: list[str] = []
        self.complaints: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]

    def open(self, path: Path, width: int = 1280, height: int = 900, **media: str) -> None:
        """Show a file, with a size of the window and media features such as ``prefers-color-scheme``."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": name.replace("_", "-"), "value": value} for name, value in media.items() if name != "media"
        ]
        self.ask("Emulation.setEmulatedMedia", media=media.get("media", ""), features=features)
        self._loaded = False
        self.ask("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._next()

    def run(self, expression: str) -> Any:
        """Return what JavaScript says; the page's content policy does not hold for it."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def tab(self) -> None:
        """Press the tabulator."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def picture(self, path: Path, height: int | None = None) -> None:
        """Write a picture of the whole page, or of so many pixels from its top."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        area = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        made = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=area)
        path.write_bytes(base64.b64decode(made["data"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _ANSWER_SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise ConnectionError("Chromium has ended")
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        match found.get("method"):
            case "Network.requestWillBeSent":
                self.fetched.append(found["params"]["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(found["params"]["entry"]["text"])
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(found["params"]))
            case "Page.loadEventFired":
                self._loaded = True
            case _:
                pass
        return found


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Run Chromium with a profile in a folder."""
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update",
             "disable-sync", "no-first-run", "hide-scrollbars", f"user-data-dir={folder / 'profile'}",
             "remote-debugging-pipe")  # fmt: skip
    # Chromium reads its third and writes its fourth descriptor; the shell puts them there, from where nothing else is.
    pipes = (*os.pipe(), *os.pipe())
    asked, asks, answered, answers = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 20) for each in pipes)
    for each in pipes:
        os.close(each)
    command = f'exec chromium "$@" 3<&{asked} 4>&{answers}'
    process = subprocess.Popen(
        ["bash", "-c", command, "chromium", *(f"--{flag}" for flag in flags)],
        pass_fds=(asked, answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(asked)
    os.close(answers)
    try:
        yield Page(answered, asks)
    finally:
        os.close(asks)
        os.close(answered)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
