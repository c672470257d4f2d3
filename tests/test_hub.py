"""Runs pushed to a stand-in of the hub, which answers on loopback, and fetched from there."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

import bhc
from bhc.errors import BhcError
from tests.hub_stand_in import ATTRIBUTES, TOKEN, Answer, Files, Hub, Repository, ask, only_loopback, running
from tests.pages import executed
from tests.quick_model import same_model

ID = "me/digits"
DESCRIPTION, CARD = "run.json", "README.md"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's own
ELSEWHERE = "http://127.0.0.1:9"  # where nothing answers


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The only hub that the client knows, empty as the cache is; nothing but loopback is asked."""
    own = {"HF_HUB_CACHE": "cache", "HF_TOKEN_PATH": "token", "AGENT_HARNESSES_PATH": "agents.json"}
    for name, file in own.items():
        monkeypatch.setattr(constants, name, str(tmp_path / "hf" / file), raising=False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a protocol of its own, which needs servers of its own
    monkeypatch.chdir(tmp_path)
    asked = only_loopback(monkeypatch)
    close_session()
    with running() as started:
        ask(started.url, monkeypatch)
        yield started
        close_session()
    assert set(asked) <= {"127.0.0.1"}


@pytest.fixture
def pushed(hub: Hub, quick_model: bhc.Compressor) -> Repository:
    quick_model.push_to_hub(ID, token=TOKEN)
    return hub.repositories[ID]


@pytest.fixture(scope="module")
def files(quick_model: bhc.Compressor, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Those of a run with its card."""
    folder = tmp_path_factory.mktemp("run")
    quick_model.save_pretrained(folder, overwrite=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def model_file(files: Files) -> str:
    return str(json.loads(files[DESCRIPTION])["files"]["model"])


def downloaded(hub: Hub) -> set[str]:
    """Files whose content was asked for."""
    return {path.rpartition("/")[2] for method, path in hub.asked if method == "GET" and "/resolve/" in path}


@pytest.mark.parametrize("license", ["", "MIT License", "mit\nprivate: true"])
def test_what_is_no_licence(quick_model: bhc.Compressor, tmp_path: Path, hub: Hub, license: str) -> None:
    with pytest.raises(BhcError, match="licence"):
        quick_model.save_pretrained(tmp_path / "run", license=license)
    with pytest.raises(BhcError, match="licence"):
        quick_model.push_to_hub(ID, token=TOKEN, license=license)
    assert not hub.asked


def test_a_run_comes_back_from_the_hub_bit_for_bit(quick_model: bhc.Compressor, hub: Hub, files: Files) -> None:
    address = quick_model.push_to_hub("digits", token=TOKEN, commit_message="first", license="mit")
    repository = hub.repositories[ID]
    assert address == f"{hub.url}/{ID}/commit/{repository.branches['main']}"
    assert repository.messages[1:] == ["first"]
    assert repository.files().keys() == {*files, ATTRIBUTES}
    assert f'from_pretrained("{ID}")' in repository.files()[CARD].decode()
    assert same_model(bhc.from_pretrained(ID), quick_model)
    assert downloaded(hub) == files.keys() - {CARD}
    hub.asked.clear()
    assert same_model(bhc.from_pretrained(ID), quick_model)
    assert not downloaded(hub)


def test_a_second_push_replaces_the_run_in_one_commit(
    pushed: Repository, quick_model: bhc.Compressor, hub: Hub, files: Files
) -> None:
    pushed.commit("main", pushed.files() | {"notes.txt": b"mine", "model-of-mine.safetensors": b"mine"})
    model = bhc.Compressor(replace(quick_model.model, validation=None, default_threshold=0.5))
    model.push_to_hub(ID, token=TOKEN)
    now = pushed.files()
    assert {each for each in now if each.startswith("validation")} == set()
    assert now.keys() == {ATTRIBUTES, CARD, DESCRIPTION, model_file(files), "notes.txt", "model-of-mine.safetensors"}
    assert len(pushed.messages) == 4
    again = bhc.from_pretrained(ID)
    assert again.model.validation is None
    assert again.model.default_threshold == 0.5
    model.push_to_hub(ID, token=TOKEN)
    assert len(pushed.messages) == 4  # nothing has changed


def test_branches_requests_and_commits(pushed: Repository, quick_model: bhc.Compressor, hub: Hub) -> None:
    first = pushed.branches["main"]
    other = bhc.Compressor(replace(quick_model.model, default_threshold=0.25))
    pushed.branches["try"] = first
    other.push_to_hub(ID, token=TOKEN, branch="try")
    request = bhc.Compressor(replace(quick_model.model, default_threshold=-1.0)).push_to_hub(
        ID, token=TOKEN, create_pr=True
    )
    assert request.pr_url == f"{hub.url}/{ID}/discussions/1"  # type: ignore[attr-defined]
    assert pushed.branches["main"] == first
    revisions = {"main": 0.75, "try": 0.25, "refs/pr/1": -1.0, first: 0.75, None: 0.75}
    read = {name: bhc.from_pretrained(ID, revision=name).model.default_threshold for name in revisions}
    assert read == revisions


def test_a_private_repository_needs_a_token(quick_model: bhc.Compressor, hub: Hub) -> None:
    quick_model.push_to_hub(ID, token=TOKEN, private=True)
    assert hub.repositories[ID].private
    for token in (None, "hf_of_somebody_else"):
        with pytest.raises(BhcError, match="no repository me/digits, or it is private") as raised:
            bhc.from_pretrained(ID, token=token)
        assert "hf auth login" in raised.value.hint
    assert same_model(bhc.from_pretrained(ID, token=TOKEN), quick_model)


def test_who_has_no_token_pushes_nothing(quick_model: bhc.Compressor, hub: Hub) -> None:
    with pytest.raises(BhcError, match="refuses") as raised:
        quick_model.push_to_hub(ID)
    assert "hf auth login" in raised.value.hint
    assert not hub.repositories


def test_a_folder_comes_before_the_hub(hub: Hub, quick_model: bhc.Compressor) -> None:
    quick_model.save(ID)
    assert same_model(bhc.from_pretrained(ID), quick_model)
    assert not hub.asked


@pytest.mark.parametrize(
    "name", ["digits", "me/digits/", "me/my digits", "https://host/me/digits", "../digits", "/me/digits"]
)
def test_what_is_neither_a_folder_nor_an_id(hub: Hub, name: str) -> None:
    with pytest.raises(BhcError, match="neither a folder nor an id"):
        bhc.from_pretrained(name)
    assert not hub.asked


def test_ids_that_the_client_refuses(hub: Hub, quick_model: bhc.Compressor) -> None:
    for call in (bhc.from_pretrained, quick_model.push_to_hub):
        with pytest.raises(BhcError, match="no id of the hub"):
            call("me/digits--of-mine")
    assert not hub.asked


def test_a_path_is_no_id(hub: Hub) -> None:
    with pytest.raises(BhcError, match="does not exist"):
        bhc.from_pretrained(Path(ID))
    assert not hub.asked


def test_without_the_package_folders_are_read_and_the_hub_is_not(
    quick_model: bhc.Compressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    quick_model.save_pretrained(tmp_path)
    assert same_model(bhc.from_pretrained(tmp_path), quick_model)
    for call in (bhc.from_pretrained, quick_model.push_to_hub):
        with pytest.raises(BhcError, match="not installed") as raised:
            call(ID)
        assert raised.value.hint == "pip install 'bhc[hub]'"


def test_a_repository_without_a_run(hub: Hub, files: Files) -> None:
    hub.add(ID, {CARD: files[CARD], "pytorch_model.bin": b"a pickle"})
    with pytest.raises(BhcError, match="holds no run"):
        bhc.from_pretrained(ID)
    assert not downloaded(hub)


def test_only_files_that_the_run_names_are_fetched(hub: Hub, files: Files, quick_model: bhc.Compressor) -> None:
    more = {"pytorch_model.bin": b"a pickle", "model-0123456789abcdef.safetensors": b"old", "more/run.json": b"{}"}
    hub.add(ID, files | more)
    assert same_model(bhc.from_pretrained(ID), quick_model)
    assert downloaded(hub) == files.keys() - {CARD}


NO_NAMES = [
    "../../secret",
    "model-0123456789abcdef.bin",
    "*",
    "more/model-0123456789abcdef.safetensors",
    "/etc/passwd",
    3,
    None,
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_lead_elsewhere_are_refused(hub: Hub, files: Files, name: Any) -> None:
    description = json.loads(files[DESCRIPTION])
    description["files"]["model"] = name
    hub.add(ID, files | {DESCRIPTION: json.dumps(description).encode(), str(name): b"more"})
    with pytest.raises(BhcError, match="no file of a run"):
        bhc.from_pretrained(ID)
    assert downloaded(hub) == {DESCRIPTION}


@pytest.mark.parametrize("content", [b"[]", b'{"files": []}'])
def test_what_is_no_description(hub: Hub, content: bytes) -> None:
    hub.add(ID, {DESCRIPTION: content})
    with pytest.raises(BhcError, match="not the description"):
        bhc.from_pretrained(ID)


def test_a_run_that_lacks_a_file(hub: Hub, files: Files) -> None:
    missing = model_file(files)
    hub.add(ID, {name: content for name, content in files.items() if name != missing})
    with pytest.raises(BhcError, match=f"lacks {missing}"):
        bhc.from_pretrained(ID)


def test_what_is_too_large_is_not_fetched(hub: Hub, files: Files) -> None:
    hub.add(ID, files)
    with pytest.raises(BhcError, match="at most 1,000,000") as raised:
        bhc.from_pretrained(ID, max_bytes=1_000_000)
    assert "max_bytes" in raised.value.hint
    hub.claimed_sizes[model_file(files)] = 9 << 30
    with pytest.raises(BhcError, match="at most 8,589,934,592"):
        bhc.from_pretrained(ID)
    assert downloaded(hub) == {DESCRIPTION}
    hub.asked.clear()
    hub.claimed_sizes[DESCRIPTION] = 17 << 20
    with pytest.raises(BhcError, match="at most 16,777,216"):
        bhc.from_pretrained(ID)
    assert not downloaded(hub)


def test_a_damaged_file_is_known_and_can_be_fetched_again(hub: Hub, files: Files, quick_model: bhc.Compressor) -> None:
    hub.add(ID, files)
    name = model_file(files)
    content = bytearray(files[name])
    content[-1] ^= 1
    hub.damage[name] = bytes(content)
    for _ in range(2):
        with pytest.raises(BhcError, match=f"{name} .* is damaged") as raised:
            bhc.from_pretrained(ID)
    assert "force_download" in raised.value.hint
    hub.damage.clear()
    assert same_model(bhc.from_pretrained(ID, force_download=True), quick_model)


def test_a_download_that_ends_early(hub: Hub, files: Files, quick_model: bhc.Compressor) -> None:
    hub.add(ID, files)
    hub.damage[model_file(files)] = files[model_file(files)][:1000]
    with pytest.raises(BhcError, match="did not pass whole"):
        bhc.from_pretrained(ID)
    hub.damage.clear()
    assert same_model(bhc.from_pretrained(ID), quick_model)


REFUSALS = [
    (Answer.error(403, "GatedRepo"), "lets in"),
    (Answer.error(401, "Invalid credentials in Authorization header"), "refuses"),
    (Answer.error(503, "Unavailable"), "refuses"),
]


@pytest.mark.parametrize(("answer", "problem"), REFUSALS)
def test_what_the_hub_refuses_to_hand_out(hub: Hub, answer: Answer, problem: str) -> None:
    hub.refuse["/api/models"] = answer
    with pytest.raises(BhcError, match=problem):
        bhc.from_pretrained(ID)


@pytest.mark.parametrize(("status", "hint"), [(403, "may write"), (412, "push again"), (500, "later")])
def test_what_the_hub_refuses_to_take(quick_model: bhc.Compressor, hub: Hub, status: int, hint: str) -> None:
    hub.refuse["/commit/"] = Answer.error(status, "No")
    with pytest.raises(BhcError, match="refuses") as raised:
        quick_model.push_to_hub(ID, token=TOKEN)
    assert hint in raised.value.hint


def test_a_push_while_somebody_else_pushes(pushed: Repository, quick_model: bhc.Compressor, hub: Hub) -> None:
    other = bhc.Compressor(replace(quick_model.model, default_threshold=0.5))
    hub.before_commit = lambda: pushed.commit("main", pushed.files() | {"notes.txt": b"theirs"})
    with pytest.raises(BhcError, match="refuses") as raised:
        other.push_to_hub(ID, token=TOKEN)
    assert "push again" in raised.value.hint


def test_a_revision_that_is_not_there(pushed: Repository, quick_model: bhc.Compressor) -> None:
    with pytest.raises(BhcError, match="no such branch"):
        bhc.from_pretrained(ID, revision="nowhere")
    with pytest.raises(BhcError, match="no such branch"):
        quick_model.push_to_hub(ID, token=TOKEN, branch="nowhere")


def test_where_the_hub_cannot_be_reached_the_cache_has_to_do(
    pushed: Repository, quick_model: bhc.Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BhcError, match="not in the cache"):
        bhc.from_pretrained(ID, local_files_only=True)
    bhc.from_pretrained(ID)
    assert same_model(bhc.from_pretrained(ID, local_files_only=True), quick_model)
    ask(ELSEWHERE, monkeypatch)
    assert same_model(bhc.from_pretrained(ID), quick_model)
    with pytest.raises(BhcError, match="not in the cache"):
        bhc.from_pretrained("me/letters")
    with pytest.raises(BhcError, match="cannot be reached"):
        bhc.from_pretrained(ID, force_download=True)
    with pytest.raises(BhcError, match="cannot be reached"):
        quick_model.push_to_hub(ID, token=TOKEN)


def test_the_page_runs(hub: Hub, quick_model: bhc.Compressor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    quick_model.save("run")
    names = executed("sharing.md")
    assert same_model(names["model"], quick_model)
