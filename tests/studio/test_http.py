"""A real service over loopback: what it hands out, and what it refuses."""

import base64
import hashlib
import json
import re
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from typer.testing import CliRunner

import bhc
from bhc.cli import app
from bhc.data import DataSet
from tests.studio.serving import PATIENCE, Serving, command, environment, npy, serving


def test_a_network_arrives_whole_and_classifies(
    server: Serving, quick_model: bhc.Compressor, digits: DataSet, tmp_path: Path
) -> None:
    answer = server.post("/v1/networks", {"classes": [3, 4]})
    assert answer.status == 200
    digest = hashlib.sha256(answer.content)
    assert answer.headers["ETag"] == f'"{digest.hexdigest()}"'
    assert answer.headers["Repr-Digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    path = tmp_path / "network.bhc"
    path.write_bytes(answer.content)
    small, test = bhc.read(path), digits.test.restricted_to([3, 4])
    assert (small.predict(test.inputs).labels == test.labels).float().mean() > 0.8
    report = json.loads(answer.headers["Bhc-Report"])
    assert report["file_bytes"] == len(answer.content)
    assert report["error"] == small.report.error


@pytest.mark.long
def test_the_same_request_gives_the_same_bytes_from_every_worker(server: Serving, run: Path) -> None:
    with serving(run, "--cache", "0", "--workers", "2") as other:
        for form in ("bhc", "onnx", "c", "pt2"):
            asked = {"classes": [1, 2], "threshold": 0.3, "format": form}
            answers = [each.post("/v1/networks", asked) for each in (server, other, other, other)]
            assert {answer.status for answer in answers} == {200}
            assert len({answer.content for answer in answers}) == 1
            assert len({answer.headers["ETag"] for answer in answers}) == 1


def test_a_known_file_is_not_sent_again(server: Serving) -> None:
    asked = {"classes": [3, 4]}
    tag = server.post("/v1/networks", asked).headers["ETag"]
    again = server.post("/v1/networks", asked, If_None_Match=f'"other", {tag}')
    assert (again.status, again.content) == (304, b"")


def test_reports_are_those_of_the_command_line(server: Serving, run: Path) -> None:
    words = command("compress", str(run), "--classes", "3,4", "--max-bytes", "3000", "--json")
    printed = subprocess.run(words, capture_output=True, text=True, env=environment(), check=True, timeout=PATIENCE)
    told = server.post("/v1/reports", {"classes": [3, 4], "max_bytes": 3000}).json()
    assert told | {"emit_ms": 0} == json.loads(printed.stdout) | {"emit_ms": 0}


WRONG = [
    (["--classes", "3,14"], {"classes": [3, 14]}),
    (["--classes", "3,3"], {"classes": [3, 3]}),
    (["--classes", "3:0.9,4:0.1"], {"classes": {"3": 0.9, "4": 0.1}}),
    (["--budget", "0.5"], {"budget": 0.5}),
    ([], {}),
    (["--classes", "3,4", "--max-bytes", "-1"], {"classes": [3, 4], "max_bytes": -1}),
    (["--classes", "3,4", "--max-bytes", "20"], {"classes": [3, 4], "max_bytes": 20}),
    (["--classes", "3,4", "--confidence", "0.9"], {"classes": [3, 4], "confidence": 0.9}),
    (["--classes", "3,4", "--max-error", "200"], {"classes": [3, 4], "max_error": 200}),
    (["--classes", "3,4", "--round-to", "0"], {"classes": [3, 4], "round_to": 0}),
    (["--classes", "3,4", "--round-to", "fc1=8,fc9=8"], {"classes": [3, 4], "round_to": {"fc1": 8, "fc9": 8}}),
    (["--classes", "3,4", "--flag-outside", "2.5"], {"classes": [3, 4], "flag_outside": 2.5}),
]


@pytest.mark.parametrize(("words", "asked"), WRONG, ids=lambda case: str(case)[:40])
def test_errors_are_those_of_the_command_line(
    server: Serving, run: Path, words: list[str], asked: dict[str, object]
) -> None:
    printed = CliRunner().invoke(app, ["compress", str(run), *words])
    assert printed.exit_code == 2
    for path in ("/v1/networks", "/v1/reports", "/v1/previews"):
        answer = server.post(path, asked)
        assert answer.status == 422
        told = answer.json()
        hint = f"hint: {told['hint']}\n" if told["hint"] else ""
        assert printed.stderr == f"error: {told['error']}\n{hint}"


@pytest.mark.long
def test_a_domain_from_samples(domain_model: bhc.Compressor, digits: DataSet, tmp_path: Path) -> None:
    domain_model.save(tmp_path / "run")
    samples = digits.train.restricted_to([1, 2]).inputs[:50]
    sent, pickled = npy(samples.numpy()), npy(np.array([print], dtype=object), pickled=True)
    with serving(tmp_path / "run", "--max-samples", "60", "--workers", "2") as server:
        told = server.ask("POST", "/v1/domains", sent).json()
        answers = [server.post("/v1/networks", {"domain": told["domain"], "threshold": 0.0}) for _ in range(4)]
        expected = domain_model.compress(domain=samples, threshold=0.0).to_bytes()
        assert {answer.content for answer in answers} == {expected}
        for bad in (b"", b"\x93NUMPY\x01\x00", pickled, sent[:-1]):
            assert server.ask("POST", "/v1/domains", bad).status == 422


def test_previews_answers_and_pictures(server: Serving, digits: DataSet) -> None:
    facts = server.get("/v1/model").json()
    picture = server.get("/v1/pictures/3/0.png")
    assert (picture.status, picture.headers["Content-Type"]) == (200, "image/png")
    assert server.get("/v1/pictures/3/9.png").status == server.get("/v1/pictures/10/0.png").status == 404
    assert server.get("/v1/pictures/x/0.png").status == 422
    shown = server.post("/v1/previews", {"classes": [3, 4]}).json()
    assert len(shown["layers"]) == len(facts["layers"])
    image = digits.test.restricted_to([3]).inputs[0]
    answers = server.post("/v1/answers", {"classes": [3, 4], "input": image.flatten().tolist()}).json()
    assert answers["tailored"]["label"] in (3, 4)


def test_examples_by_their_numbers(server: Serving) -> None:
    number = server.get("/v1/model").json()["examples"][3][0]
    shown = server.get(f"/v1/examples/{number}")
    assert (shown.json()["example"], shown.json()["drawing"]["kind"]) == (number, "image")
    assert "max-age" in shown.headers["Cache-Control"]
    assert server.get("/v1/examples/x").status == 422
    missing = server.get(f"/v1/examples/{10**30}")
    asked = server.post("/v1/answers", {"classes": [3, 4], "example": 10**30})
    assert (missing.status, asked.status) == (404, 422)
    assert missing.json() == asked.json()


def test_the_page_comes_from_its_folder_alone(server: Serving) -> None:
    page = server.get("/")
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd", "/....//app.py", "/page", "/%00"):
        answer = server.get(path)
        assert answer.status in (400, 404), path
        assert b"import" not in answer.content


def test_the_description_has_examples_that_are_answered(server: Serving) -> None:
    described = server.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    for path, name in (("networks", "NetworkAsked"), ("reports", "Asked"), ("answers", "AnswerAsked")):
        assert server.post(f"/v1/{path}", schemas[name]["example"]).status == 200
    page = server.get("/docs").content.decode()
    assert all(path in page for path in ("/v1/networks", "/v1/domains", "max_ram_bytes"))
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def test_counters_and_health(server: Serving) -> None:
    server.post("/v1/networks", {"classes": [3, 4]})
    text = server.get("/metrics").content.decode()
    assert re.search(r'^bhc_requests_total\{route="/v1/networks",status="200"\} [1-9]', text, re.MULTILINE)
    assert re.search(r"^bhc_workers 2$", text, re.MULTILINE)
    assert len(re.findall(r"^bhc_resident_bytes\{process=.*\} \d+$", text, re.MULTILINE)) == 3
    assert server.get("/healthz").json() == {"status": "ok", "workers": 2}


def test_the_cache_remembers(server: Serving) -> None:
    def hits() -> int:
        text = server.get("/metrics").content.decode()
        return int(re.findall(r'^bhc_cache_total\{result="hit"\} (\d+)', text, re.MULTILINE)[0])

    asked = {"classes": [0, 9], "threshold": 0.123}
    first, before = server.post("/v1/networks", asked), hits()
    assert server.post("/v1/networks", asked).content == first.content
    assert hits() == before + 1


CHUNKED = b"POST /v1/networks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
HOSTILE = [
    (b"\x16\x03\x01\x00\xa5nothing of HTTP\r\n\r\n", b" 400 "),
    (b"POST /v1/networks HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b" 413 "),
    (CHUNKED + b"20000\r\n" + b" " * 0x20000, b" 413 "),
    (b"POST /v1/networks HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b" 400 "),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n", b" 400 "),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (66 << 10) + b"\r\n\r\n", b" 4"),
    (b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b" 404 "),
    (b"DELETE /v1/networks HTTP/1.1\r\nHost: x\r\n\r\n", b" 405 "),
]


@pytest.mark.parametrize(("message", "status"), HOSTILE, ids=lambda case: str(case)[:40])
def test_hostile_requests_are_refused_and_good_ones_stay_right(server: Serving, message: bytes, status: bytes) -> None:
    good = server.post("/v1/networks", {"classes": [6, 8]})
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(message)
        assert status in connection.makefile("rb").readline()
    assert server.post("/v1/networks", {"classes": [6, 8]}).content == good.content


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"[" * 50_000,
        b'{"classes": ' + b"9" * 5000 + b"}",
        b'{"classes": [NaN]}',
        b'{"classes": {"3": 1e999}}',
        b'{"classes": [[3], {"4": null}]}',
        b'{"classes": [3, 4], "format": "exe"}',
        b'{"classes": [3, 4], "format": ["bhc"]}',
        b'{"classes": [3, 4], "unknown": 1}',
        b'{"classes": [3, 4], "precision": "x"}',
        b'{"classes": [3, 4], "float32": "perhaps"}',
        b'{"classes": [3, 4], "threshold": "low"}',
        b'{"classes": [3, 4], "max_bytes": true}',
        b'{"classes": [3, 4], "domain": "x"}',
        b"\xff\xfe\x00",
    ],
)
def test_wrong_bodies_are_refused_in_words(server: Serving, body: bytes) -> None:
    answer = server.ask("POST", "/v1/networks", body, Content_Type="application/json")
    assert answer.status in (400, 422)
    assert set(answer.json()) == {"error", "hint"}
    assert answer.json()["error"]
    form = server.ask("POST", "/v1/networks", body, Content_Type="application/x-www-form-urlencoded")
    assert form.status == 422
    assert "Content-Type: application/json" in form.json()["hint"]


@pytest.mark.long
def test_a_slow_request_is_not_waited_for(server: Serving) -> None:
    """The head, a byte now and then: the connection is closed, and nothing else has waited for it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as slow:
        slow.sendall(b"POST /v1/networks HTTP/1.1\r\nX-Slow: ")
        assert server.post("/v1/networks", {"classes": [3, 4]}).status == 200
        slow.sendall(b"y")
        assert slow.recv(1) == b""


EXAMPLES = 25  # of each operation


def test_no_request_made_up_from_the_description_is_a_fault(server: Serving) -> None:
    torch.set_flush_denormal(False)  # commands set it for their process, and numbers are made up down to the smallest
    described = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in described.get_all_operations()]
    assert {operation.path for operation in operations} >= {
        "/v1/networks",
        "/v1/domains",
        "/v1/answers",
        "/v1/examples/{number}",
        "/metrics",
    }
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=PATIENCE)

        check()
