"""What every format promises: whatever is registered is asked, in all the ways in which it holds weights."""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.errors import BhcError
from bhc.formats import Format, format_named, format_of, formats, open_deployed

EACH = pytest.mark.parametrize("form", formats(), ids=lambda form: form.name)


@pytest.fixture(scope="module")
def small() -> bhc.Compressed:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return bhc.wrap(net, bhc.ClassSubsets(4), example_input=torch.zeros(1, 8)).compress(classes=[0, 2])


@EACH
def test_it_is_found_by_its_names_and_by_what_its_files_end_in(form: Format) -> None:
    assert all(format_named(name) is form for name in (form.name, *form.aliases))
    assert format_of(Path(f"net{form.suffix}")) is form
    assert "/" in form.media_type
    assert form.label


@EACH
def test_it_says_the_same_in_every_form_and_is_written_the_same_twice(
    form: Format, small: bhc.Compressed, tmp_path: Path
) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    for weights in form.weight_forms:
        path = tmp_path / f"{weights.value}{form.suffix}"
        small.export(path, form.name, weights=weights, name="net")
        again = tmp_path / f"again{form.suffix}"
        small.export(again, form.name, weights=weights, name="net", overwrite=True)
        if form.name != "pt2":  # torch puts an identity of its own into each
            assert path.read_bytes() == again.read_bytes()
        if type(form).open is Format.open:
            with pytest.raises(BhcError, match="cannot be run here"):
                open_deployed(path)
            continue
        opened = open_deployed(path)
        assert (opened.labels, opened.size) == ((0, 2), path.stat().st_size)
        assert (opened.signature, opened.temperature) == (small.network.signature, small.temperature)
        torch.testing.assert_close(opened.logits(x), small.module(x), rtol=0, atol=1e-5)


@EACH
@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\3\4 and so on", b"{}" * 40, None])
def test_a_file_that_is_none_is_refused(
    form: Format, small: bhc.Compressed, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / f"net{form.suffix}"
    small.export(path, form.name)
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    with pytest.raises(BhcError):
        open_deployed(path)


@EACH
def test_a_file_that_exists_is_replaced_on_request_alone(form: Format, small: bhc.Compressed, tmp_path: Path) -> None:
    path = tmp_path / f"net{form.suffix}"
    path.write_bytes(b"precious")
    with pytest.raises(BhcError, match="exists") as caught:
        small.export(path, form.name)
    assert "overwrite=True" in caught.value.hint
    assert path.read_bytes() == b"precious"
    assert small.export(path, form.name, overwrite=True) is small
    assert path.read_bytes() != b"precious"
    for place in (path / "inside", tmp_path / ("x" * 300), tmp_path):
        with pytest.raises(BhcError, match="could not write"):
            small.export(place, form.name, name="net", overwrite=True)
    assert [*tmp_path.iterdir()] == [path]
