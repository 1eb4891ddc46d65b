"""Debian's Chromium without a window, told what to do over its own DevTools protocol."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

from tests.flows.serving import until

TO_START_S = 60.0
TO_SHOW_S = 120.0  # the graph of a run is drawn without a graphics card


class Browser:
    """One page; a context manager.

    Args:
        profile: an empty folder for what the browser keeps.
        width, height: of the window, in pixels.
    """

    def __init__(self, profile: Path, *, width: int = 1400, height: int = 1000) -> None:
        self._profile = profile
        self._size = f"{width},{height}"
        self._last_id = 0

    def __enter__(self) -> Self:
        command = [
            "chromium",
            "--headless=new",
            "--no-sandbox",  # which a container cannot give it
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--window-size={self._size}",
            f"--user-data-dir={self._profile}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        where = self._profile / "DevToolsActivePort"
        assert until(lambda: where.exists() and "\n" in where.read_text(), TO_START_S)
        port, path = where.read_text().split("\n")[:2]
        self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None)
        (page,) = (t for t in self._tell("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._tell("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(30)

    def open(self, address: str) -> None:
        self._tell("Page.navigate", self._session, url=address)

    def text(self) -> str:
        """What can be read on the page."""
        return str(self._evaluate("document.body ? document.body.innerText : ''"))

    def shows(self, *wanted: str) -> bool:
        """Whether the page comes to show all of it; case does not count."""

        def all_there() -> bool:
            text = self.text().lower()
            return all(each.lower() in text for each in wanted)

        return until(all_there, TO_SHOW_S)

    def click(self, label: str) -> None:
        """Click what is labelled so, once it is there."""
        code = (
            "(() => { const e = [...document.querySelectorAll('body *')].find("
            f"e => !e.children.length && e.textContent.trim() === {json.dumps(label)});"
            " if (e) e.click(); return Boolean(e) })()"
        )
        assert until(lambda: self._evaluate(code) is True, TO_SHOW_S), f"no {label!r}"

    def type(self, text: str) -> None:
        """Type into the first field of the page, once there is one, and press Enter."""
        focus = "(() => { const e = document.querySelector('input'); e?.focus(); return !!e })()"
        assert until(lambda: self._evaluate(focus) is True, TO_SHOW_S), self.text()
        self._tell("Input.insertText", self._session, text=text)
        for kind in ("keyDown", "keyUp"):
            key = {"key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
            self._tell("Input.dispatchKeyEvent", self._session, type=kind, **key)

    def picture(self, path: Path) -> None:
        """What it looks like, as a PNG."""
        answer = self._tell("Page.captureScreenshot", self._session, format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def _evaluate(self, code: str) -> Any:
        answer = self._tell("Runtime.evaluate", self._session, expression=code, returnByValue=True)
        return answer["result"].get("value")

    def _tell(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return dict(answer["result"])
