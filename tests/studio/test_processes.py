"""Queue, time, workers that die, and the end: each with a service of its own, some with a worker held still."""

import os
import re
import signal
from pathlib import Path

import pytest

import bhc
from tests.studio.serving import PATIENCE, Serving, serving

ASKED = {"classes": [3, 4]}


def hold(server: Serving) -> int:
    """Stop the only worker; what is asked from now on waits."""
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    return worker


def refuses(server: Serving) -> bool:
    """Whether nobody is let in any more."""
    try:
        return server.get("/healthz").status != 200
    except OSError:
        return True


@pytest.mark.long
def test_a_full_queue_says_when_to_come_again(run: Path) -> None:
    with serving(run, "--queue", "1") as server:
        worker = hold(server)
        first = server.later("/v1/networks", ASKED)
        server.wait_for(lambda: server.pending() == 1)
        refused = server.post("/v1/networks", ASKED)
        os.kill(worker, signal.SIGCONT)
        assert refused.status == 429
        assert refused.headers["Retry-After"] == "1"
        assert refused.json()["error"] == "too many requests are waiting"
        assert first.result(PATIENCE).status == 200
        assert server.post("/v1/networks", ASKED).status == 200


@pytest.mark.long
def test_a_request_that_takes_too_long_is_given_up(run: Path) -> None:
    with serving(run, "--time-limit", "1") as server:
        worker = hold(server)
        assert server.post("/v1/networks", ASKED).status == 504
        server.wait_for(lambda: server.workers() not in ([], [worker]))
        server.wait_for(lambda: server.post("/v1/networks", ASKED).status == 200)


def test_a_killed_worker_loses_nothing(run: Path) -> None:
    with serving(run, "--cache", "0") as server:
        expected = server.post("/v1/networks", ASKED).content
        worker = hold(server)
        waiting = [server.later("/v1/networks", ASKED) for _ in range(3)]
        server.wait_for(lambda: server.pending() == 3)
        os.kill(worker, signal.SIGKILL)
        assert [each.result(PATIENCE).content for each in waiting] == [expected] * 3
        assert worker not in server.workers()
        assert b"\nbhc_worker_restarts_total 1\n" in server.get("/metrics").content


@pytest.mark.long
def test_an_idle_worker_that_is_killed_is_replaced(run: Path) -> None:
    with serving(run) as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        server.wait_for(lambda: server.get("/healthz").status == 200 and server.workers() not in ([], [worker]))
        assert server.post("/v1/networks", ASKED).status == 200


@pytest.mark.long
def test_running_requests_are_answered_before_the_end(run: Path) -> None:
    with serving(run) as server:
        worker = hold(server)
        waiting = server.later("/v1/networks", ASKED)
        server.wait_for(lambda: server.pending() == 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: refuses(server))
        os.kill(worker, signal.SIGCONT)
        assert waiting.result(PATIENCE).status == 200
        assert server.process.wait(PATIENCE) == 0
        assert not Path(f"/proc/{worker}").exists()


@pytest.mark.long
def test_workers_end_with_the_service_however_it_ends(run: Path) -> None:
    with serving(run, "--workers", "2") as server:
        workers = server.workers()
        assert len(workers) == 2
        server.process.kill()
        server.wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


@pytest.mark.long
def test_a_token_is_asked_for(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret-words\n")
    with serving(run, "--token-file", str(secret)) as server:
        for path in ("/v1/model", "/metrics", "/v1/pictures/1/0.png"):
            assert server.get(path).status == 401
            assert server.get(path, Authorization="Bearer other").status == 401
            assert server.get(path, Authorization="Bearer s3cret-words").status == 200
        refused = server.post("/v1/networks", ASKED)
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert server.post("/v1/networks", ASKED, Authorization="Bearer s3cret-words").status == 200
        assert server.get("/").status == server.get("/healthz").status == 200


@pytest.mark.long
def test_a_fault_has_a_name_and_no_trace(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    """A run that loads and then fails: its images are gone from under the labels that are left."""
    folder = tmp_path / "run"
    quick_model.save(folder)
    with serving(folder) as server:
        (worker,) = server.workers()
        (folder / "run.json").write_text("{}")
        os.kill(worker, signal.SIGKILL)
        answer = server.post("/v1/networks", ASKED)
        assert answer.status == 500
        told = answer.json()
        assert "Traceback" not in str(told)
        assert "run.json" not in str(told)
        server.wait_for(lambda: f"fault {told['id']}\n" in server.said)
        assert re.search("run.json", "".join(server.said))
        assert server.get("/healthz").status == 503
