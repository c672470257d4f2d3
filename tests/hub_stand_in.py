"""A stand-in of the Hugging Face hub on loopback: the requests that its client makes, answered from memory.

Answers are shaped as those of the hub: what is large or binary goes by LFS, a commit is lines of JSON, a private
repository is not there for who has no token.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import constants

Files = dict[str, bytes]
OWNER, TOKEN = "me", "hf_of_the_owner"
ATTRIBUTES = ".gitattributes"  # what a new repository of the hub holds


@dataclass
class Repository:
    """Commits by their id, and where branches are."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: Files, message: str = "") -> str:
        told = repr((len(self.commits), sorted(files.items()))).encode()
        sha = hashlib.sha1(told, usedforsecurity=False).hexdigest()
        self.commits[sha], self.branches[branch] = dict(files), sha
        self.messages.append(message)
        return sha

    def sha(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> Files:
        return self.commits[self.branches[revision]]


@dataclass
class Answer:
    """What is sent back."""

    status: int = 200
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, status: int = 200) -> "Answer":
        return cls(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def from_byte(self, range: str | None) -> "Answer":
        """The rest of a file, for who has the beginning."""
        found = re.fullmatch(r"bytes=(\d+)-", range or "")
        if found is None or self.status != 200:
            return self
        first, size = int(found[1]), len(self.content)
        if first >= size:
            return Answer(416, headers={"Content-Range": f"bytes */{size}"})
        return Answer(206, self.content[first:], self.headers | {"Content-Range": f"bytes {first}-{size - 1}/{size}"})

    @classmethod
    def error(cls, status: int, code: str) -> "Answer":
        return cls(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code, "X-Error-Message": code})


class Hub:
    """All repositories, what was asked, and what a test has it do wrong."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}  # LFS objects by their sha256
        self.asked: list[tuple[str, str]] = []
        self.damage: dict[str, bytes] = {}  # by the name of a file, what is sent in its place
        self.refuse: dict[str, Answer] = {}  # by a part of the path
        self.claimed_sizes: dict[str, int] = {}
        self.before_commit: Callable[[], object] = lambda: None

    def add(self, repo_id: str, files: Files, *, private: bool = False) -> Repository:
        self.repositories[repo_id] = Repository(private)
        self.repositories[repo_id].commit("main", files)
        return self.repositories[repo_id]

    def answer(self, method: str, path: str, body: bytes, token: str | None) -> Answer:
        split = urlsplit(path)
        self.asked.append((method, unquote(split.path)))
        refused = next((answer for part, answer in self.refuse.items() if part in path), None)
        if refused is not None:
            return refused
        for pattern, handle in ROUTES:
            if found := re.fullmatch(pattern, split.path):
                parts = [unquote(part) for part in found.groups()]
                return handle(self, *parts, body=body, token=token, query=parse_qs(split.query))
        return Answer.error(404, "NoSuchPage")

    def create(self, *, body: bytes, token: str | None, query: Any) -> Answer:
        asked = json.loads(body)
        if token != TOKEN:
            return Answer.error(401, "Unauthorized")
        repo_id = f"{asked['organization'] or OWNER}/{asked['name']}"
        there = repo_id in self.repositories
        if not there:
            private = asked.get("visibility") == "private" or bool(
                asked.get("private")
            )  # as later and earlier clients say it
            self.add(repo_id, {ATTRIBUTES: b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}, private=private)
        return Answer.json({"url": f"{self.url}/{repo_id}", "id": repo_id}, 409 if there else 200)

    def check_card(self, *, body: bytes, token: str | None, query: Any) -> Answer:
        wrong = not json.loads(body)["content"].startswith("---\n")
        return Answer.json(
            {"errors": [{"message": "no metadata"}] if wrong else [], "warnings": []}, 400 if wrong else 200
        )

    def open(self, repo_id: str, revision: str, token: str | None) -> tuple[Repository, str] | Answer:
        repository = self.repositories.get(repo_id)
        if repository is None or (repository.private and token != TOKEN):
            return Answer.error(401 if token is None else 404, "RepoNotFound")
        sha = repository.sha(revision)
        return Answer.error(404, "RevisionNotFound") if sha is None else (repository, sha)

    def info(self, repo_id: str, revision: str = "main", *, body: bytes, token: str | None, query: Any) -> Answer:
        opened = self.open(repo_id, revision, token)
        if isinstance(opened, Answer):
            return opened
        repository, sha = opened
        files = [self.sibling(name, content, "blobs" in query) for name, content in repository.commits[sha].items()]
        return Answer.json({"id": repo_id, "sha": sha, "private": repository.private, "siblings": files})

    def sibling(self, name: str, content: bytes, sizes: bool) -> dict[str, Any]:
        if not sizes:
            return {"rfilename": name}
        size = self.claimed_sizes.get(name, len(content))
        return {"rfilename": name, "size": size, "blobId": git_id(content), **lfs(name, content)}

    def tree(self, repo_id: str, revision: str, *, body: bytes, token: str | None, query: Any) -> Answer:
        opened = self.open(repo_id, revision, token)
        if isinstance(opened, Answer):
            return opened
        repository, sha = opened
        files = [
            {"type": "file", "path": name, "size": len(content), "oid": git_id(content), **lfs(name, content, "oid")}
            for name, content in repository.commits[sha].items()
        ]
        return Answer.json(files)

    def resolve(self, repo_id: str, revision: str, name: str, *, body: bytes, token: str | None, query: Any) -> Answer:
        opened = self.open(repo_id, revision, token)
        if isinstance(opened, Answer):
            return opened
        repository, sha = opened
        if name not in repository.commits[sha]:
            return Answer.error(404, "EntryNotFound")
        content = repository.commits[sha][name]
        head = {"X-Repo-Commit": sha, "ETag": f'"{content_id(name, content)}"', "X-Linked-Size": str(len(content))}
        return Answer(200, self.damage.get(name, content), head)

    def preupload(self, repo_id: str, revision: str, *, body: bytes, token: str | None, query: Any) -> Answer:
        opened = self.open(repo_id, revision, token)
        if isinstance(opened, Answer):
            return opened
        there = opened[0].commits[opened[1]]
        return Answer.json({"files": [upload_mode(each["path"], there) for each in json.loads(body)["files"]]})

    def batch(self, repo_id: str, *, body: bytes, token: str | None, query: Any) -> Answer:
        objects: list[dict[str, Any]] = json.loads(body)["objects"]
        for each in objects:
            if each["oid"] not in self.large:
                each["actions"] = {"upload": {"href": f"{self.url}/lfs/{each['oid']}"}}
        return Answer.json({"transfer": "basic", "objects": objects})

    def put(self, oid: str, *, body: bytes, token: str | None, query: Any) -> Answer:
        if hashlib.sha256(body).hexdigest() != oid:
            return Answer.error(400, "WrongContent")
        self.large[oid] = body
        return Answer()

    def commit(self, repo_id: str, revision: str, *, body: bytes, token: str | None, query: Any) -> Answer:
        self.before_commit()
        opened = self.open(repo_id, revision, token)
        if isinstance(opened, Answer):
            return opened
        if token != TOKEN:
            return Answer.error(403, "Forbidden")
        repository, sha = opened
        lines = [json.loads(line) for line in body.splitlines()]
        head = next(line["value"] for line in lines if line["key"] == "header")
        if head.get("parentCommit", sha) != sha:
            return Answer.error(412, "A commit has happened since")
        files = dict(repository.commits[sha])
        for line in lines:
            self.apply(line["key"], line["value"], files)
        branch = "refs/pr/1" if "create_pr" in query else revision
        made = repository.commit(branch, files, head["summary"])
        request = f"{self.url}/{repo_id}/discussions/1" if "create_pr" in query else None
        return Answer.json(
            {"commitUrl": f"{self.url}/{repo_id}/commit/{made}", "commitOid": made, "pullRequestUrl": request}
        )

    def apply(self, kind: str, value: dict[str, Any], files: Files) -> None:
        """One line of a commit."""
        if kind == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "lfsFile":
            files[value["path"]] = self.large[value["oid"]]
        elif kind == "deletedFile":
            del files[value["path"]]


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def content_id(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if is_large(name) else git_id(content)


def lfs(name: str, content: bytes, key: str = "sha256") -> dict[str, Any]:
    if not is_large(name):
        return {}
    return {"lfs": {key: hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}


def upload_mode(name: str, there: Files) -> dict[str, Any]:
    oid = {"oid": content_id(name, there[name])} if name in there else {}
    return {"path": name, "uploadMode": "lfs" if is_large(name) else "regular", "shouldIgnore": False, **oid}


REPO = r"([\w.-]+/[\w.-]+)"
ROUTES = (
    (r"/api/repos/create", Hub.create),
    (r"/api/validate-yaml", Hub.check_card),
    (rf"/api/models/{REPO}", Hub.info),
    (rf"/api/models/{REPO}/revision/([^/]+)", Hub.info),
    (rf"/api/models/{REPO}/tree/([^/]+)", Hub.tree),
    (rf"/api/models/{REPO}/preupload/([^/]+)", Hub.preupload),
    (rf"/api/models/{REPO}/commit/([^/]+)", Hub.commit),
    (rf"/{REPO}\.git/info/lfs/objects/batch", Hub.batch),
    (r"/lfs/([0-9a-f]{64})", Hub.put),
    (rf"/{REPO}/resolve/([^/]+)/(.+)", Hub.resolve),
)


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that answers on a free port of 127.0.0.1."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = self.headers.get("Authorization")
            answer = hub.answer(self.command, self.path, body, said and said.removeprefix("Bearer "))
            answer = answer.from_byte(self.headers.get("Range"))
            self.send_response(answer.status)
            for name, value in ({"Content-Length": str(len(answer.content))} | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_GET = do_HEAD = do_POST = do_PUT = handle_request

        def log_message(self, *words: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``HF_ENDPOINT`` sets when the client is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def only_loopback(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that are looked up and addresses that are connected to, from now on; no others than loopback are."""
    asked: list[str] = []
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def checked(host: str) -> None:
        asked.append(host)
        if host != "127.0.0.1":
            raise OSError(f"{host} is not to be asked")

    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: checked(host) or look_up(host, *more, **named)
    )
    monkeypatch.setattr(socket.socket, "connect", lambda own, address: checked(address[0]) or connect(own, address))
    return asked
