"""A real browser in front of a real service: `make test-browser`, not part of `make test`."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet
from bhc.training import Silent
from tests.quick_model import RECIPE
from tests.vision import vision_model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_SECONDS, SHUTDOWN_SECONDS = 60, 20
QUIET_MS, STEP_MS = 200, 20


@pytest.fixture(scope="session")
def budget_run(digits: DataSet, pretrained: torch.nn.Sequential, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for classes and a budget."""
    space = bhc.Joint(bhc.ClassSubsets(10), bhc.Budgets())
    return trained(digits, pretrained, space, tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="session")
def inputs_run(digits: DataSet, pretrained: torch.nn.Sequential, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for features and domains."""
    space = bhc.Joint(
        bhc.FeatureSubsets(digits.image_shape), bhc.InputDomains(digits.image_shape, full_scale=digits.full_scale)
    )
    return trained(digits, pretrained, space, tmp_path_factory.mktemp("runs") / "inputs")


def trained(digits: DataSet, net: torch.nn.Module, space: ContextSpace, run: Path) -> Path:
    model = bhc.wrap(net, space, example_input=digits.train.inputs[:1])
    # The pretrained network knows the calibration images, so what is proved on them holds for nothing but these tests.
    rest, calibration = digits.held_out(300)
    data = (rest.train, digits.validation)
    bhc.fit(model, *data, calibration_set=calibration, recipe=RECIPE, run=run, progress=Silent())
    return run


@contextmanager
def served(run: Path, *options: str) -> Iterator[str]:
    """The address of `bhc serve` on a run, as long as it is needed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "bhc", "serve", str(run), "--port", str(port), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            address = f"http://127.0.0.1:{port}/"
            wait_for(address + "healthz", process)
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=SHUTDOWN_SECONDS)


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if process.poll() is not None:
                break
            time.sleep(0.1)
    process.kill()
    pytest.fail(f"the service did not start: {process.communicate()[0].decode()}")


@pytest.fixture(scope="session")
def address(budget_run: Path) -> Iterator[str]:
    with served(budget_run) as address:
        yield address


@pytest.fixture(scope="session")
def inputs_address(inputs_run: Path) -> Iterator[str]:
    with served(inputs_run) as address:
        yield address


@pytest.fixture(scope="session")
def vision_address(digits: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a vision transformer."""
    run = tmp_path_factory.mktemp("runs") / "vision"
    vision_model(digits).save(run)
    with served(run) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as driver:
        # A container's root user has no sandbox to be put into; the only pages opened are our own.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """A person at the page, and a record of what went wrong behind it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[Request] = []
        self.pending: set[Request] = set()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", self._note)
        page.on("requestfinished", lambda request: self.pending.discard(request))
        page.on("requestfailed", lambda request: self.pending.discard(request))

    def open(self, address: str) -> "Visitor":
        """Goes to the studio and waits for its first network."""
        self.page.goto(address)
        self.wait_for_figures()
        return self

    def wait_for_figures(self) -> None:
        expect(self.page.locator(".large strong")).not_to_have_text("")

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if urlsplit(request.url).path == path]

    def settle(self) -> None:
        """Waits until nothing has been asked for longer than the page waits for the next change."""
        quiet = 0
        while quiet < QUIET_MS:
            self.page.wait_for_timeout(STEP_MS)
            quiet = 0 if self.pending else quiet + STEP_MS

    def assert_content(self, home: str) -> None:
        """No error on the console, and no request to anywhere else."""
        assert self.complaints == []
        assert [request.url for request in self.requests if not request.url.startswith((home, "blob:"))] == []

    def _note(self, request: Request) -> None:
        self.requests.append(request)
        self.pending.add(request)

    def _hear(self, message: ConsoleMessage) -> None:
        refused = "the server responded with a status of 4" in message.text  # the browser's own note of a refusal
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(f"{message.type}: {message.text}")


class Visits:
    """Opens pages; at the end every one must have been content."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.open: list[tuple[Visitor, str]] = []

    def __call__(self, address: str, *, fragment: str = "", width: int = 1440, **options: object) -> Visitor:
        context = self.browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **options)
        visitor = Visitor(context.new_page())
        self.open.append((visitor, address))
        return visitor.open(address + fragment)

    def leave(self) -> None:
        for visitor, address in self.open:
            visitor.page.context.close()
            visitor.assert_content(address)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    visits.leave()
