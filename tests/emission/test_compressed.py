import json
from pathlib import Path

import onnx
import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.formats import open_session, packed_parts

LABELS = [4, 9]


@pytest.fixture(scope="module")
def small(quick_model: bhc.Compressor) -> bhc.Compressed:
    return quick_model.compress(classes=LABELS, threshold=-1.5)


def test_a_saved_file_is_the_bytes_that_the_report_counts_and_equal_networks_give_equal_ones(
    quick_model: bhc.Compressor, small: bhc.Compressed, tmp_path: Path
) -> None:
    assert small.save(tmp_path / "new" / "small.bhc") is small
    content = (tmp_path / "new" / "small.bhc").read_bytes()
    assert content == small.to_bytes()
    assert len(content) == small.report.file_bytes
    assert quick_model.compress(classes=LABELS, threshold=-1.5).to_bytes() == content
    assert quick_model.compress(classes=[4, 8], threshold=-1.5).to_bytes() != content


def test_parts_add_up_to_the_size_of_the_file(quick_model: bhc.Compressor, small: bhc.Compressed) -> None:
    for network in (small, quick_model.compress(classes=[1, 2, 3], quantisation=bhc.Float32())):
        parts = packed_parts(network.network)
        assert sum(part.bytes for part in parts) == pytest.approx(len(network.to_bytes()))
        assert all(part.bytes >= 0 for part in parts)
        layers = {part.layer for part in parts} - {None}
        assert layers == set(network.report.layers)


def test_predictions_are_the_original_labels(small: bhc.Compressed, digits: DataSet) -> None:
    answer = small.predict(digits.test.inputs)
    with torch.no_grad():
        logits = small.module(digits.test.inputs)
    assert answer.labels.tolist() == [LABELS[place] for place in logits.argmax(1).tolist()]
    torch.testing.assert_close(answer.probabilities, torch.softmax(logits / small.temperature, dim=1))
    assert answer.classes == small.classes == tuple(LABELS)


def test_the_module_is_the_caller_s_own(quick_model: bhc.Compressor, digits: DataSet) -> None:
    small = quick_model.compress(classes=LABELS)
    content, answer = small.to_bytes(), small.predict(digits.test.inputs)
    with torch.no_grad():
        for parameter in small.module.parameters():
            parameter.zero_()
    small.module.double()
    assert small.module is small.module
    assert small.to_bytes() == content
    assert torch.equal(small.predict(digits.test.inputs).probabilities, answer.probabilities)
    assert torch.equal(quick_model.compress(classes=LABELS).predict(digits.test.inputs).labels, answer.labels)


def test_an_onnx_file_answers_as_the_module_and_says_what_it_is(
    small: bhc.Compressed, digits: DataSet, tmp_path: Path
) -> None:
    images = digits.test.inputs.float()
    for form in (bhc.WeightForm.FLOATS, bhc.WeightForm.INTEGERS):
        small.to_onnx(tmp_path / "small.onnx", weights=form, overwrite=True)
        session = open_session((tmp_path / "small.onnx").read_bytes())
        logits = torch.from_numpy(session.run(None, {"input": images.numpy()})[0])
        torch.testing.assert_close(logits, small.module(images), rtol=1e-4, atol=1e-4)
        known = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
        assert known["bhc.classes"] == LABELS
        assert known["bhc.context"] == {"classes": LABELS}
        assert known["bhc.class_names"] == ["4", "9"]
        assert bhc.Report.from_dict(known["bhc.report"]) == small.report
        onnx.checker.check_model(onnx.load(tmp_path / "small.onnx"))


def test_a_header_is_named_after_its_file_or_as_told(small: bhc.Compressed, tmp_path: Path) -> None:
    small.to_c(tmp_path / "4-9.h").to_c(tmp_path / "other.h", name="mine", weights=bhc.WeightForm.BIT_PACKED)
    text = (tmp_path / "4-9.h").read_text()
    assert "int net_4_9_predict(const float *input, float *scores)" in text
    assert "context: classes [4, 9]" in text
    assert f"validation error: {small.report.error:.2f} %" in text
    assert "int mine_predict(" in (tmp_path / "other.h").read_text()
    with pytest.raises(BhcError, match="C name"):
        small.to_c(tmp_path / "bad.h", name="4-9")
    assert not (tmp_path / "bad.h").exists()


def test_a_program_carries_the_report(small: bhc.Compressed, tmp_path: Path) -> None:
    small.to_torch(tmp_path / "small.pt2")
    extra = {"bhc.json": ""}
    program = torch.export.load(tmp_path / "small.pt2", extra_files=extra)
    known = json.loads(extra["bhc.json"])
    assert bhc.Report.from_dict(known["report"]) == small.report
    assert known["classes"] == LABELS
    x = 16 * torch.rand(3, *small.input_shape)
    torch.testing.assert_close(program.module()(x), small.module(x))
