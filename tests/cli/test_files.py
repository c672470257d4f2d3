"""Files that leave the house: export, evaluate and inspect on every form, and what they refuse."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

import bhc
from bhc.emission import auroc
from bhc.formats import onnx_bytes
from tests.cli.test_commands import PNG, call, refused, run

__all__ = ["run"]  # a fixture

FORMS = {"onnx": ".onnx", "c": ".h", "torch": ".pt2"}


@pytest.fixture
def small(quick_model: bhc.Compressor, tmp_path: Path) -> Path:
    path = tmp_path / "small.bhc"
    quick_model.compress(classes=[3, 4]).save(path)
    return path


def test_every_form_is_written_and_judged_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path
) -> None:
    for to, suffix in FORMS.items():
        assert call(monkeypatch, "export", small, "--to", to, "--out", small.with_suffix(suffix), "--json") == 0
        assert json.loads(capsys.readouterr().out)["file_bytes"] == small.with_suffix(suffix).stat().st_size
    integers = small.with_name("integers.onnx")
    assert call(monkeypatch, "export", small, "--to", "onnx", "--weights", "integers", "--out", integers) == 0
    capsys.readouterr()
    results = []
    for file in (small, small.with_suffix(".onnx"), integers, small.with_suffix(".pt2")):
        assert call(monkeypatch, "evaluate", file, "--data", "digits", "--json") == 0
        results.append(json.loads(capsys.readouterr().out))
    assert len({result["test_error"] for result in results}) == 1
    assert {f"{result['test_ece']:.2f}" for result in results} == {f"{results[0]['test_ece']:.2f}"}
    assert results[0]["test_ece"] > 0
    for result in results:
        assert result["classes"] == [3, 4]
        assert result["latency_ms"] > 0
        assert result["file_bytes"] == Path(result["file"]).stat().st_size
    assert [result["runtime"] for result in results] == [
        "torch", "onnxruntime", "onnxruntime", "torch, exported program",
    ]  # fmt: skip


def test_inputs_outside_the_context_are_flagged_in_every_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.bhc"
    words = ("compress", run, "--classes", "3,4", "--flag-outside", "0.1", "--out", small)
    assert call(monkeypatch, *words) == 0
    assert "flags outside at most 10 % false alarms where it was set; AUROC" in capsys.readouterr().out
    bhc.read(small).to_onnx(small.with_suffix(".onnx")).to_torch(small.with_suffix(".pt2"))
    test = bhc.data.load("digits").test
    own = torch.isin(test.labels, torch.tensor([3, 4]))
    answer = bhc.read(small).predict(test.inputs)
    assert answer.outside is not None
    for file in (small, small.with_suffix(".onnx"), small.with_suffix(".pt2")):
        assert call(monkeypatch, "evaluate", file, "--data", "digits", "--json") == 0
        result = json.loads(capsys.readouterr().out)
        assert result["false_alarms"] == pytest.approx(100 * answer.outside[own].float().mean().item(), abs=2)
        assert result["outside"]["flagged"] == pytest.approx(100 * answer.outside[~own].float().mean().item(), abs=1)
        assert result["outside"]["images"] == int((~own).sum())
        expected = auroc(answer.outside_score[own], answer.outside_score[~own])
        assert result["outside"]["auroc"] == pytest.approx(expected, abs=1e-3)
    assert call(monkeypatch, "evaluate", small, "--data", "digits") == 0
    text = capsys.readouterr().out
    for words in ("calibration ", "false alarms ", f"left out      AUROC {result['outside']['auroc']:.3f}, "):
        assert words in text


def test_a_file_that_flags_nothing_still_scores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path
) -> None:
    assert call(monkeypatch, "evaluate", small, "--data", "digits", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["false_alarms"] is None
    assert result["outside"]["flagged"] is None
    assert result["outside"]["auroc"] > 0.5


@pytest.mark.parametrize(("name", "value"), [("temperature", 0), ("temperature", "warm"), ("alarm", [2, "low", 0.1])])
def test_what_a_file_says_of_itself_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path, name: str, value: object
) -> None:
    network = bhc.read(small)
    path = small.with_suffix(".onnx")
    path.write_bytes(onnx_bytes(network.network, metadata=network.metadata() | {name: value}))
    refused(monkeypatch, capsys, "damaged", "evaluate", path, "--data", "digits")


def test_c_states_its_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path) -> None:
    out, packed = small.with_name("net.h"), small.with_name("packed.h")
    assert call(monkeypatch, "export", small, "--to", "c", "--out", out, "--name", "digits") == 0
    text = capsys.readouterr().out
    assert "bytes of constants" in text
    assert "int digits_predict(const float *input, float *scores)" in out.read_text()
    bit_packed = ("--to", "c", "--weights", "bit-packed", "--out", packed, "--json")
    assert call(monkeypatch, "export", small, *bit_packed) == 0
    assert json.loads(capsys.readouterr().out)["flash_bytes"] < bhc.read(small).report.ram_bytes


def test_inspect_accounts_for_every_byte(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path
) -> None:
    assert call(monkeypatch, "inspect", small, "--json", "--plot", tmp_path / "file.png") == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(part["bytes"] for part in facts["parts"]) == pytest.approx(small.stat().st_size)
    assert [layer["name"] for layer in facts["stored_layers"]] == ["fc1", "fc2", "fc3"]
    stream = facts["weight_stream"]
    assert stream["coded_bytes"] + stream["prior_bytes"] <= 1.03 * stream["entropy_bytes"] + 40
    assert (tmp_path / "file.png").read_bytes().startswith(PNG)
    assert call(monkeypatch, "inspect", small) == 0
    text = capsys.readouterr().out
    for words in ("weights", "entropy", "inputs read", "biases", "magic, version, lengths, checksum"):
        assert words in text


def test_limits_are_kept_by_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "limited.bhc"
    limits = ("--max-bytes", "700", "--max-flops", "60000", "--max-ram-bytes", "20000", "--max-latency-ms", "50")
    assert call(monkeypatch, "compress", run, "--classes", "3,4", *limits, "--out", out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert out.stat().st_size == report["file_bytes"] <= 700
    assert report["flops_after"] <= 60000
    assert report["ram_bytes"] <= 20000
    assert 0 < report["latency_ms"] <= 50
    assert call(monkeypatch, "compress", run, "--classes", "3,4", "--float32", "--json") == 0
    assert json.loads(capsys.readouterr().out)["bits"] == [32, 32, 32]


def test_exports_refuse_what_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path
) -> None:
    onnx = ("export", small, "--to", "onnx", "--out")
    refused(monkeypatch, capsys, "ends in .onnx", *onnx, tmp_path / "net.h")
    refused(
        monkeypatch, capsys, "do not hold weights as bit-packed", *onnx, tmp_path / "n.onnx", "--weights", "bit-packed"
    )
    refused(monkeypatch, capsys, "--name is for formats that are code", *onnx, tmp_path / "n.onnx", "--name", "net")
    refused(monkeypatch, capsys, "cannot be part of a C name", "export", small, "--to", "c", "--out", tmp_path / "n.h",
            "--name", "2 nets")  # fmt: skip
    refused(
        monkeypatch, capsys, "does not exist", "export", tmp_path / "none.bhc", "--to", "c", "--out", tmp_path / "n.h"
    )
    refused(monkeypatch, capsys, "cannot write to the folder", *onnx, small / "inside" / "n.onnx")
    mine = tmp_path / "mine.onnx"
    mine.write_text("precious")
    refused(monkeypatch, capsys, "exists already", *onnx, mine)
    assert mine.read_text() == "precious"
    assert call(monkeypatch, *onnx, mine, "--force") == 0
    assert mine.read_bytes() != b"precious"


@pytest.mark.parametrize("suffix", [".bhc", ".onnx", ".pt2"])
def test_damaged_files_of_every_form_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path, suffix: str
) -> None:
    path = small.with_suffix(suffix)
    if suffix != ".bhc":
        to = {".onnx": "onnx", ".pt2": "torch"}[suffix]
        assert call(monkeypatch, "export", small, "--to", to, "--out", path) == 0
        capsys.readouterr()
    content = path.read_bytes()
    for damaged in (b"", b"junk", content[: len(content) // 2], b"\0" * len(content)):
        path.write_bytes(damaged)
        refused(monkeypatch, capsys, "damaged", "evaluate", path, "--data", "digits")


def test_misleading_requests_are_answered_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, small: Path, tmp_path: Path
) -> None:
    refused(monkeypatch, capsys, "made for the classes 3, 4", "evaluate", small, "--data", "digits", "--classes", "5,6")
    out = ("--out", tmp_path / "net.onnx")
    refused(monkeypatch, capsys, "compress writes .bhc files", "compress", run, "--classes", "3,4", *out)
    floats = tmp_path / "floats.bhc"
    assert call(monkeypatch, "compress", run, "--classes", "3,4", "--float32", "--out", floats) == 0
    assert call(monkeypatch, "export", floats, "--to", "c", "--out", tmp_path / "floats.h") == 0
    assert "weights as floats" in capsys.readouterr().out
    packed = ("--to", "c", "--weights", "bit-packed", "--out", tmp_path / "packed.h")
    refused(monkeypatch, capsys, "has 32-bit weights", "export", floats, *packed)


def test_a_program_with_a_pickle_inside_is_never_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path
) -> None:
    path, trap = small.with_suffix(".pt2"), tmp_path / "sprung"
    bhc.read(small).to_torch(path)

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (trap,)  # type: ignore[return-value]

    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for name in [name for name in entries if name.endswith(".pt")]:
        hostile = io.BytesIO()
        with zipfile.ZipFile(hostile, "w") as archive:
            for other, content in entries.items():
                archive.writestr(other, pickle.dumps(Trap()) if other == name else content)
        path.write_bytes(hostile.getvalue())
        refused(monkeypatch, capsys, "damaged, or was not written by bhc", "evaluate", path, "--data", "digits")
        assert not trap.exists()
    code = f"__import__('pathlib').Path({str(trap)!r}).touch() is None"
    model, constants = "archive/models/model.json", "archive/data/constants/model_constants_config.json"
    program = json.loads(entries[model])
    opaque = {"x": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}}
    for change in (
        {model: json.dumps(program | {"guards_code": [code]}).encode()},
        {model: entries[model].replace(b"torch.ops.aten.", b"torch.ops.evil.")},
        {model: entries[model].replace(b"Symbol(", b"eval(")},
        {
            constants: json.dumps({"config": opaque}).encode(),
            "archive/data/constants/opaque_obj_0": pickle.dumps(Trap()),
        },
        {constants: b'{"config": {"x": {"use_pickle": true}}}'},
        {"archive/data/aotinductor/model/x.so": b"x"},
    ):
        hostile = io.BytesIO()
        with zipfile.ZipFile(hostile, "w") as archive:
            for other, content in (entries | change).items():
                archive.writestr(other, content)
        assert (entries | change) != entries
        path.write_bytes(hostile.getvalue())
        refused(monkeypatch, capsys, "damaged, or was not written by bhc", "evaluate", path, "--data", "digits")
        assert not trap.exists()
