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
from tests.cli.commands import PNG, Commands

FORMS = {"onnx": ".onnx", "c": ".h", "torch": ".pt2"}


@pytest.fixture
def small(quick_model: bhc.Compressor, tmp_path: Path) -> Path:
    path = tmp_path / "small.bhc"
    quick_model.compress(classes=[3, 4]).save(path)
    return path


def test_every_form_is_written_and_judged_alike(cli: Commands, small: Path) -> None:
    for to, suffix in FORMS.items():
        told = cli.json("export", small, "--to", to, "--out", small.with_suffix(suffix))
        assert told["file_bytes"] == small.with_suffix(suffix).stat().st_size
    integers = small.with_name("integers.onnx")
    cli("export", small, "--to", "onnx", "--weights", "integers", "--out", integers)
    files = (small, small.with_suffix(".onnx"), integers, small.with_suffix(".pt2"))
    results = [cli.json("evaluate", file, "--data", "digits") for file in files]
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


def test_inputs_outside_the_context_are_flagged_in_every_form(cli: Commands, run: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.bhc"
    words = ("compress", run, "--classes", "3,4", "--flag-outside", "0.1", "--out", small)
    assert "flags outside at most 10 % false alarms where it was set; AUROC" in cli(*words).out
    bhc.read(small).to_onnx(small.with_suffix(".onnx")).to_torch(small.with_suffix(".pt2"))
    test = bhc.data.load("digits").test
    own = torch.isin(test.labels, torch.tensor([3, 4]))
    answer = bhc.read(small).predict(test.inputs)
    assert answer.outside is not None
    for file in (small, small.with_suffix(".onnx"), small.with_suffix(".pt2")):
        result = cli.json("evaluate", file, "--data", "digits")
        assert result["false_alarms"] == pytest.approx(100 * answer.outside[own].float().mean().item(), abs=2)
        assert result["outside"]["flagged"] == pytest.approx(100 * answer.outside[~own].float().mean().item(), abs=1)
        assert result["outside"]["images"] == int((~own).sum())
        expected = auroc(answer.outside_score[own], answer.outside_score[~own])
        assert result["outside"]["auroc"] == pytest.approx(expected, abs=1e-3)
    text = cli("evaluate", small, "--data", "digits").out
    for words in ("calibration ", "false alarms ", f"left out      AUROC {result['outside']['auroc']:.3f}, "):
        assert words in text


def test_a_file_that_flags_nothing_still_scores(cli: Commands, small: Path) -> None:
    result = cli.json("evaluate", small, "--data", "digits")
    assert result["false_alarms"] is None
    assert result["outside"]["flagged"] is None
    assert result["outside"]["auroc"] > 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", "warm"),
        ("alarm", [2, "low", 0.1]),
        ("class_names", ["three"]),
        ("class_names", [3, 4]),
        ("context", {"classes": [3, "four"]}),
        ("report", {"error_name": 7, "has_answers": True}),
        ("report", {"error_name": "a\x1b[2J", "has_answers": True}),
        ("report", {"error_name": "error", "has_answers": "yes"}),
    ],
)
def test_what_a_file_says_of_itself_is_not_believed(cli: Commands, small: Path, name: str, value: object) -> None:
    network = bhc.read(small)
    path = small.with_suffix(".onnx")
    path.write_bytes(onnx_bytes(network.network, metadata=network.metadata() | {name: value}))
    cli.refused("damaged", "evaluate", path, "--data", "digits")


def test_c_states_its_memory(cli: Commands, small: Path) -> None:
    out, packed = small.with_name("net.h"), small.with_name("packed.h")
    text = cli("export", small, "--to", "c", "--out", out, "--name", "digits").out
    assert "bytes of constants" in text
    assert "int digits_predict(const float *input, float *scores)" in out.read_text()
    told = cli.json("export", small, "--to", "c", "--weights", "bit-packed", "--out", packed)
    assert told["flash_bytes"] < bhc.read(small).report.ram_bytes


def test_inspect_accounts_for_every_byte(cli: Commands, small: Path, tmp_path: Path) -> None:
    facts = cli.json("inspect", small, "--plot", tmp_path / "file.png")
    assert sum(part["bytes"] for part in facts["parts"]) == pytest.approx(small.stat().st_size)
    assert [layer["name"] for layer in facts["stored_layers"]] == ["fc1", "fc2", "fc3"]
    stream = facts["weight_stream"]
    assert stream["coded_bytes"] + stream["prior_bytes"] <= 1.03 * stream["entropy_bytes"] + 40
    assert (tmp_path / "file.png").read_bytes().startswith(PNG)
    text = cli("inspect", small).out
    for words in ("weights", "entropy", "inputs read", "biases", "magic, version, lengths, checksum"):
        assert words in text


def test_limits_are_kept_by_the_file(cli: Commands, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "limited.bhc"
    limits = ("--max-bytes", "700", "--max-flops", "60000", "--max-ram-bytes", "20000", "--max-latency-ms", "50")
    report = cli.json("compress", run, "--classes", "3,4", *limits, "--out", out)
    assert out.stat().st_size == report["file_bytes"] <= 700
    assert report["flops_after"] <= 60000
    assert report["ram_bytes"] <= 20000
    assert 0 < report["latency_ms"] <= 50
    assert cli.json("compress", run, "--classes", "3,4", "--float32")["bits"] == [32, 32, 32]


def test_exports_refuse_what_makes_no_sense(cli: Commands, small: Path, tmp_path: Path) -> None:
    onnx, c = ("export", small, "--to", "onnx", "--out"), ("--to", "c", "--out", tmp_path / "n.h")
    cli.refused("ends in .onnx", *onnx, tmp_path / "net.h")
    cli.refused("bit-packed", *onnx, tmp_path / "n.onnx", "--weights", "bit-packed")
    cli.refused("--name", *onnx, tmp_path / "n.onnx", "--name", "net")
    cli.refused("C name", "export", small, *c, "--name", "2 nets")
    cli.refused("does not exist", "export", tmp_path / "none.bhc", *c)
    cli.refused("cannot write to the folder", *onnx, small / "inside" / "n.onnx")
    mine = tmp_path / "mine.onnx"
    mine.write_text("precious")
    cli.refused("exists already", *onnx, mine)
    assert mine.read_text() == "precious"
    cli(*onnx, mine, "--force")
    assert mine.read_bytes() != b"precious"


def test_misleading_requests_are_answered_in_words(cli: Commands, run: Path, small: Path, tmp_path: Path) -> None:
    cli.refused("made for the classes 3, 4", "evaluate", small, "--data", "digits", "--classes", "5,6")
    out = ("--out", tmp_path / "net.onnx")
    cli.refused("compress writes .bhc files", "compress", run, "--classes", "3,4", *out)
    floats = tmp_path / "floats.bhc"
    cli("compress", run, "--classes", "3,4", "--float32", "--out", floats)
    assert "weights as floats" in cli("export", floats, "--to", "c", "--out", tmp_path / "floats.h").out
    packed = ("--to", "c", "--weights", "bit-packed", "--out", tmp_path / "packed.h")
    cli.refused("has 32-bit weights", "export", floats, *packed)


def test_a_program_with_a_pickle_inside_is_never_loaded(cli: Commands, small: Path, tmp_path: Path) -> None:
    path, trap = small.with_suffix(".pt2"), tmp_path / "sprung"
    bhc.read(small).to_torch(path)

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (trap,)  # type: ignore[return-value]

    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    code = f"__import__('pathlib').Path({str(trap)!r}).touch() is None"
    model, constants = "archive/models/model.json", "archive/data/constants/model_constants_config.json"
    program = json.loads(entries[model])
    opaque = {"x": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}}
    for change in (
        *({name: pickle.dumps(Trap())} for name in entries if name.endswith(".pt")),
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
        cli.refused("damaged", "evaluate", path, "--data", "digits")
        assert not trap.exists()
