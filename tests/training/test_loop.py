import json
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.training import Point, RunFolder, Silent, choose_threshold, load_run
from bhc.training.learning import Learn
from bhc.training.stages import Dials, Draw, Loss

RECIPE = (
    bhc.Learn(steps=40, kl_weight=0.1, contexts=4, examples=8),
    bhc.Consolidate(steps=20, contexts=4, examples=8),
)


def fit(digits: DataSet, net: torch.nn.Module, **options: object) -> bhc.Compressor:
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.images[:1])
    options = {"recipe": RECIPE, "progress": Silent()} | options
    return bhc.fit(model, digits.train, digits.validation, **options)  # type: ignore[arg-type]


def bits(model: bhc.Compressor) -> dict[str, torch.Tensor]:
    return model.network.state_dict()


def assert_same_bits(one: bhc.Compressor, other: bhc.Compressor) -> None:
    assert bits(one).keys() == bits(other).keys()
    for name, tensor in bits(one).items():
        assert torch.equal(tensor, bits(other)[name]), name


class Stopped(Exception):
    pass


class StopAt:
    """Progress that breaks the run off."""

    def __init__(self, step: int, title: str) -> None:
        self.step, self.title, self.current = step, title, ""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.current = title

    def update(self, done: int, terms: dict[str, float]) -> None:
        if self.current == self.title and done >= self.step:
            raise Stopped

    def end(self) -> None:
        return None


def test_training_changes_the_network_and_lowers_the_divergence(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    recipe = (bhc.Learn(steps=200, kl_weight=0.1, warm_up=0.1, contexts=4, examples=8),)
    fit(digits, pretrained, run=tmp_path / "run", recipe=recipe)
    records = RunFolder(tmp_path / "run").metrics.read()
    assert [record["step"] for record in records] == [50, 100, 150, 200]
    assert records[-1]["kl"] < 0.7 * records[0]["kl"]
    assert {"stage", "cross_entropy", "kl_weight", "ratio", "seconds"} <= records[0].keys()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(
    digits: DataSet, pretrained: torch.nn.Module
) -> None:
    one, same, other = (fit(digits, pretrained, seed=seed) for seed in (1, 1, 2))
    assert_same_bits(one, same)
    with pytest.raises(AssertionError):
        assert_same_bits(one, other)


@pytest.mark.parametrize(("stop", "stage"), [(40, "learning"), (20, "consolidating")])
def test_a_run_broken_off_in_either_stage_resumes_to_the_same_bits(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, stop: int, stage: str
) -> None:
    whole = fit(digits, pretrained, run=tmp_path / "whole", checkpoint_every=7)
    with pytest.raises(Stopped):
        fit(digits, pretrained, run=tmp_path / "cut", checkpoint_every=7, progress=StopAt(stop, stage))
    with pytest.raises(BhcError, match="unfinished run"):
        bhc.load(tmp_path / "cut")
    resumed = fit(digits, pretrained, run=tmp_path / "cut", checkpoint_every=7, resume=True)
    assert_same_bits(whole, resumed)
    assert_same_bits(whole, bhc.load(tmp_path / "cut"))
    steps = [record["step"] for record in RunFolder(tmp_path / "cut").metrics.read()]
    assert steps == [record["step"] for record in RunFolder(tmp_path / "whole").metrics.read()]
    clocks = [model.model.training.pop("seconds") for model in (whole, resumed)]
    assert all(0 < seconds < 600 for seconds in clocks)
    assert whole.model.training == resumed.model.training


def test_a_run_that_was_given_ratios_resumes_to_the_same_thresholds(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    recipe = (RECIPE[0], bhc.Consolidate(steps=20, ratios=(1.2, 2.0), contexts=4, examples=8))
    whole = fit(digits, pretrained, recipe=recipe, run=tmp_path / "whole", checkpoint_every=7)
    stop = StopAt(20, "consolidating")
    with pytest.raises(Stopped):
        fit(digits, pretrained, recipe=recipe, run=tmp_path / "cut", checkpoint_every=7, progress=stop)
    resumed = fit(digits, pretrained, recipe=recipe, run=tmp_path / "cut", checkpoint_every=7, resume=True)
    assert_same_bits(whole, resumed)
    assert whole.model.thresholds == resumed.model.thresholds == bhc.load(tmp_path / "cut").model.thresholds


def test_stage_two_of_a_budget_resumes_with_its_offsets_still_frozen(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    learn = bhc.Learn(steps=60, kl_weight=0.1, contexts=2, examples=8)
    recipe = bhc.two_stage_budget(learn, learn)

    def go(**options: object) -> bhc.Compressor:
        model = bhc.wrap(pretrained, bhc.BinaryBudget(), example_input=digits.train.images[:1])
        settings = {"recipe": recipe, "checkpoint_every": 7, "progress": Silent()} | options
        return bhc.fit(model, digits.train, digits.validation, **settings)  # type: ignore[arg-type]

    class StopInStageTwo(StopAt):
        begun = 0

        def begin(self, title: str, total: int, done: int = 0) -> None:
            self.begun += 1
            self.current = title if self.begun == 2 else ""

    whole = go(run=tmp_path / "whole")
    with pytest.raises(Stopped):
        go(run=tmp_path / "cut", progress=StopInStageTwo(40, "learning"))
    assert_same_bits(whole, go(run=tmp_path / "cut", resume=True))


def test_a_finished_run_loads_and_emits_the_same_network(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    model = fit(digits, pretrained, run=tmp_path / "run", class_names=digits.class_names)
    loaded = bhc.load(tmp_path / "run")
    assert loaded.model.class_names == digits.class_names
    assert loaded.model.default_threshold == model.model.default_threshold
    assert loaded.model.thresholds == model.model.thresholds == model.network.hypernet.family.thresholds
    assert not RunFolder(tmp_path / "run").checkpoint.exists()
    one, other = model.compress(classes=[2, 7]), loaded.compress(classes=[2, 7])
    x = digits.test.images
    assert torch.equal(one.module(x), other.module(x))
    assert one.report.error == other.report.error


def test_resume_without_a_run_is_refused(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(BhcError, match="no run to resume"):
        fit(digits, pretrained, run=tmp_path / "none", resume=True)
    with pytest.raises(BhcError, match="no folder was given"):
        fit(digits, pretrained, resume=True)


def _broken_off(digits: DataSet, net: torch.nn.Module, path: Path) -> None:
    with pytest.raises(Stopped):
        fit(digits, net, run=path, checkpoint_every=10, progress=StopAt(40, "learning"))


def test_resume_with_another_recipe_or_seed_is_refused(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    _broken_off(digits, pretrained, tmp_path)
    with pytest.raises(BhcError, match="another seed"):
        fit(digits, pretrained, run=tmp_path, resume=True, seed=5)
    with pytest.raises(BhcError, match="another recipe"):
        fit(digits, pretrained, run=tmp_path, resume=True, recipe=RECIPE[:1])


def test_a_damaged_checkpoint_is_refused(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    _broken_off(digits, pretrained, tmp_path)
    checkpoint = RunFolder(tmp_path).checkpoint
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(BhcError, match="checksum"):
        fit(digits, pretrained, run=tmp_path, resume=True)
    checkpoint.write_bytes(content[: len(content) // 2])
    with pytest.raises(BhcError, match="damaged"):
        fit(digits, pretrained, run=tmp_path, resume=True)


def test_a_failing_save_keeps_the_old_checkpoint(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken_off(digits, pretrained, tmp_path)
    before = RunFolder(tmp_path).checkpoint.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bhc.files.os.fsync", full_disk)
    with pytest.raises(BhcError, match="No space left"):
        fit(digits, pretrained, run=tmp_path, resume=True, checkpoint_every=10)
    assert RunFolder(tmp_path).checkpoint.read_bytes() == before


def test_weights_of_another_model_are_refused(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    fit(digits, pretrained, run=tmp_path)
    description = json.loads((tmp_path / "run.json").read_text())
    description["generator"] = {"kind": "low-rank", "rank": 2}
    (tmp_path / "run.json").write_text(json.dumps(description))
    with pytest.raises(BhcError, match="belongs to another model"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not the description of a run"),
        ({"version": 99}, "version 99"),
        ({"network": [{"kind": "linear"}]}, "damaged"),
        ({"default_threshold": None}, "damaged"),
        ({"context": []}, "damaged"),
        ({"input_shape": [-1]}, "damaged"),
        ({"thresholds": [1]}, "damaged"),
        ({"class_names": 3}, "damaged"),
        ({"files": {"model": "../elsewhere"}}, "does not exist"),
    ],
)
def test_a_damaged_description_is_refused(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    fit(digits, pretrained, run=tmp_path, recipe=(bhc.Learn(steps=1),))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BhcError, match=message):
        bhc.load(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BhcError, match=r"no run\.json"):
        bhc.load(tmp_path)


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(
    digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_loss = Learn.loss

    taken = 0

    def sometimes_nan(self: Learn, network: object, draw: Draw, dials: Dials) -> Loss:
        nonlocal taken
        taken += 1
        loss = plain_loss(self, network, draw, dials)  # type: ignore[arg-type]
        return Loss(loss.total * float("nan"), loss.terms) if taken == 4 else loss

    monkeypatch.setattr(Learn, "loss", sometimes_nan)
    model = fit(digits, pretrained, recipe=(bhc.Learn(steps=6, contexts=2, examples=4),))
    assert model.model.training["skipped_steps"] == 1
    assert all(torch.isfinite(tensor).all() for tensor in bits(model).values())


def test_consolidation_keeps_the_masks_and_lowers_the_error(digits: DataSet, pretrained: torch.nn.Module) -> None:
    recipe = (
        bhc.Learn(steps=300, kl_weight=0.3, contexts=8, examples=8),
        bhc.Consolidate(steps=200, contexts=8, examples=8),
    )
    model = fit(digits, pretrained, recipe=recipe)
    before, after = (model.model.training["curves"][name] for name in ("before", "after"))
    assert [p["ratio_harmonic"] for p in before] == [p["ratio_harmonic"] for p in after]
    assert sum(p["error"] for p in after) < sum(p["error"] for p in before)


def test_the_default_threshold_is_the_smallest_network_within_the_error() -> None:
    points = [Point(t, 1, ratio, 1, error, 1) for t, ratio, error in [(-1, 90, 3.0), (0, 50, 1.4), (1, 20, 1.0)]]
    assert choose_threshold(points, most_error=1.5) == 0
    assert choose_threshold(points, most_error=0.5) == 1


def test_a_recipe_without_steps_is_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    with pytest.raises(BhcError, match="no steps"):
        fit(digits, pretrained, recipe=())


def test_inputs_of_another_shape_are_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.images[:1])
    wrong = (torch.zeros(20, 1, 7, 7, dtype=torch.uint8), torch.arange(20) % 10)
    with pytest.raises(BhcError, match="inputs of shape"):
        bhc.fit(model, wrong, wrong, recipe=RECIPE, progress=Silent())


def test_an_absent_device_is_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    with pytest.raises(BhcError, match="cannot compute on"):
        fit(digits, pretrained, device="nonsense")


def test_the_deterministic_option_leaves_torch_as_it_was(digits: DataSet, pretrained: torch.nn.Module) -> None:
    fit(digits, pretrained, recipe=(bhc.Learn(steps=2, contexts=2, examples=2),), deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_second_training_learns_again(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = fit(digits, pretrained)
    name = "hypernet.vectors.logvar_map.offset"
    before = bits(model)[name].clone()
    bhc.fit(model, digits.train, digits.validation, recipe=RECIPE[:1], progress=Silent())
    assert model.network.hypernet.gates is None
    assert not torch.equal(before, bits(model)[name])


def test_a_finished_or_begun_run_is_not_thrown_away(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    fit(digits, pretrained, run=tmp_path / "done")
    _broken_off(digits, pretrained, tmp_path / "begun")
    for name in ("done", "begun"):
        with pytest.raises(BhcError, match="holds a run already"):
            fit(digits, pretrained, run=tmp_path / name)
    with pytest.raises(BhcError, match="is finished"):
        fit(digits, pretrained, run=tmp_path / "done", resume=True)
    fit(digits, pretrained, run=tmp_path / "done", overwrite=True, seed=3)
    assert bhc.load(tmp_path / "done").model.training["seed"] == 3
    assert len(list((tmp_path / "done").glob("model-*"))) == 1


def test_an_interrupted_save_leaves_the_old_run(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = fit(digits, pretrained, run=tmp_path), fit(digits, pretrained, seed=4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bhc.training.run.write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        second.save(tmp_path, overwrite=True)
    assert_same_bits(first, bhc.load(tmp_path))


def test_a_folder_that_is_a_file_is_refused(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BhcError, match="cannot write to the folder"):
            fit(digits, pretrained, run=path)


def test_what_a_killed_process_left_is_swept_up(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.safetensors.abc.part").write_text("half")
    fit(digits, pretrained, run=tmp_path)
    assert not list(tmp_path.glob(".*.part"))


def test_training_that_diverges_ends_with_advice(
    digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_loss = Learn.loss

    def always_nan(self: Learn, network: object, draw: Draw, dials: Dials) -> Loss:
        loss = plain_loss(self, network, draw, dials)  # type: ignore[arg-type]
        return Loss(loss.total * float("nan"), loss.terms)

    monkeypatch.setattr(Learn, "loss", always_nan)
    with pytest.raises(BhcError, match="diverged"):
        fit(digits, pretrained, recipe=(bhc.Learn(steps=60, contexts=2, examples=4),))


def test_a_network_that_knows_nothing_neither_teaches_nor_is_compared_with(digits: DataSet) -> None:
    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8), full_scale=16.0)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.images[:1], pretrained=False)
    recipe = (bhc.Learn(steps=250, kl_weight=0.05, contexts=8, examples=8), bhc.Consolidate(steps=100))
    bhc.fit(model, digits.train, digits.validation, recipe=recipe, progress=Silent())
    assert model.model.training["original_error"] is None
    small = model.compress(classes=[0, 1])
    assert small.report.error_before is None
    assert small.report.error is not None
    assert small.report.error < 20


def test_a_diary_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    diary = RunFolder(tmp_path).metrics
    diary.append({"step": 1})
    diary.path.write_bytes(diary.path.read_bytes() + b'\xff\n[1]\n{"step": 2}\n{"st')
    assert [record["step"] for record in diary.read()] == [1, 2]
    with pytest.raises(BhcError, match="could not write"):
        RunFolder(tmp_path / "none").metrics.append({"step": 1})


def files_in(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{kind}-*.safetensors"))


def test_calibration_images_are_kept_whole_and_change_nothing(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    plain = fit(digits, pretrained, run=tmp_path / "plain")
    model = fit(digits, pretrained, run=tmp_path / "run", calibration_set=digits.test)
    assert_same_bits(plain, model)
    for part in ("curves", "curve_contexts", "original_error"):
        assert model.model.training[part] == plain.model.training[part]
    assert model.model.default_threshold == plain.model.default_threshold
    loaded = bhc.load(tmp_path / "run")
    assert loaded.model.calibration is not None
    assert torch.equal(loaded.model.calibration.images, digits.test.images)
    assert torch.equal(loaded.model.calibration.labels, digits.test.labels)
    assert bhc.load(tmp_path / "plain").model.calibration is None
    assert files_in(tmp_path / "plain", "calibration") == []
    assert files_in(tmp_path / "plain", "validation") == files_in(tmp_path / "run", "validation")
    for request in ({}, {"max_bytes": 2000}, {"max_error": 20.0}):
        small, same = (m.compress(classes=[3, 4], **request) for m in (plain, loaded))  # type: ignore[arg-type]
        assert small.to_bytes() == same.to_bytes()


def test_more_than_the_validation_sample_may_be_kept(digits: DataSet, pretrained: torch.nn.Module) -> None:
    """A pair of tensors, and over 500 images of a class."""
    images, labels = digits.test.images[:1].repeat(600, 1, 1, 1), digits.test.labels[:1].repeat(600)
    model = fit(digits, pretrained, calibration_set=(images, labels), recipe=(bhc.Learn(steps=1, contexts=2),))
    assert model.model.calibration is not None
    assert len(model.model.calibration) == 600


def test_saving_again_keeps_calibration_images_and_forgets_others(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    model = fit(digits, pretrained, calibration_set=digits.test)
    model.save(tmp_path / "run")
    first = files_in(tmp_path / "run", "calibration")
    model.model.calibration = digits.test.restricted_to([1, 2])
    model.save(tmp_path / "run", overwrite=True)
    second = files_in(tmp_path / "run", "calibration")
    assert len(first) == len(second) == 1
    assert first != second
    read = bhc.load(tmp_path / "run").model.calibration
    assert read is not None
    assert set(read.labels.tolist()) == {1, 2}
    model.model.calibration = None
    model.save(tmp_path / "run", overwrite=True)
    assert files_in(tmp_path / "run", "calibration") == []


def test_calibration_images_of_another_shape_are_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    with pytest.raises(BhcError, match=r"inputs of shape \(1, 4, 4\)"):
        fit(digits, pretrained, calibration_set=(digits.test.images[:, :, :4, :4], digits.test.labels))
