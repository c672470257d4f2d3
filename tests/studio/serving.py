"""Real services in processes of their own, asked over loopback."""

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bhc

SOURCE = Path(bhc.__file__).parents[1]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
PATIENCE = 120.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class Serving:
    """A service that runs."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"
        self.said: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, value: Any, **headers: str) -> Answer:
        return self.ask("POST", path, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def later(self, path: str, value: Any) -> "Future[Answer]":
        """The same in a thread of its own."""
        return ThreadPoolExecutor(1).submit(self.post, path, value)

    def workers(self) -> list[int]:
        """The processes that emit: children of the one that forks them."""
        return [grandchild for child in children(self.process.pid) for grandchild in children(child)]

    def pending(self) -> int:
        text = self.get("/metrics").content.decode()
        return int(float(text.split("\nbhc_pending_requests ")[1].split()[0]))

    def wait_for(self, what: Any) -> None:
        """Until something holds; the test fails if it never does."""
        until = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < until
            time.sleep(0.05)


def children(process: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == process:
            found.append(int(folder.name))
    return sorted(found)


def npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    """Samples as a service is sent them."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "bhc", *words]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


@contextmanager
def serving(run: Path, *options: str, imported: Sequence[Path] = ()) -> Iterator[Serving]:
    """A service on a free port, ended however the test ends."""
    before = [f"--import={path}" for path in imported]
    words = command(*before, "serve", str(run), "--port", "0", *options)
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        found = ADDRESS.search(first)
        assert found is not None, first + process.stderr.read()
        started = Serving(process, int(found[1]))
        yield started
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        started.listener.join(PATIENCE)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
