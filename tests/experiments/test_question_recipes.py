"""What is trained for a question, and which threshold is taken."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from questions import ablations
from questions.bench import Bench, Config, most_accurate

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet, Shift
from bhc.training import Point, Recipe, Silent
from tests.experiments.toys import toml

LEARN = {"steps": 12, "kl_weight": 0.1, "warm_up": 0.4, "contexts": 6, "examples": 7}
CONSOLIDATE = {"steps": 6, "ratios": [2.0, 3.0], "blended": 0.5}


def config(folder: Path, **changes: Any) -> Config:
    given = {"question": "subsets", "model": "lenet-300-100", "data": "digits", "seeds": [0], "learn": LEARN}
    path = folder / "asked.toml"
    path.write_text(toml(given | changes))
    return Config.read(path)


def point(threshold: float, *, ratio: float, error: float) -> Point:
    return Point(threshold, 1000.0, ratio, ratio, error, error)


def test_of_those_small_enough_the_most_accurate_is_taken_and_else_the_smallest() -> None:
    points = [point(-2, ratio=9, error=3), point(-1, ratio=6, error=2), point(0, ratio=5, error=2.5)]
    assert most_accurate([*points, point(1, ratio=4, error=1)], ratio=5).threshold == -1
    assert most_accurate([*points, point(1, ratio=4, error=1)], ratio=4).threshold == 1
    assert most_accurate(points[::-1], ratio=10).threshold == -2


def test_a_question_may_narrow_and_shift_and_does_neither_unless_it_says_so(tmp_path: Path) -> None:
    plain = config(tmp_path)
    assert (plain.augment, plain.recipe()) == (None, (bhc.Learn(**LEARN),))  # type: ignore[arg-type]
    asked = config(tmp_path, augment="shift", narrow={"steps": 9, "final_ratio": 2.5}, consolidate=CONSOLIDATE)
    assert asked.augment == Shift(1)
    assert asked.recipe(kl_weight=0.3) == (
        bhc.Learn(steps=12, kl_weight=0.3, warm_up=0.4, contexts=6, examples=7),
        bhc.Narrow(steps=9, final_ratio=2.5, kl_weight=0.3, contexts=6, examples=7),
        bhc.Consolidate(steps=6, ratios=(2.0, 3.0), blended=0.5, contexts=6, examples=7),
    )
    with pytest.raises(bhc.BhcError, match="'turn'"):
        config(tmp_path, augment="turn")


def test_a_model_that_was_trained_otherwise_is_not_taken(
    tmp_path: Path, digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "_pretrained", lambda *_: pretrained)

    def bench(**settings: Any) -> Bench:
        return Bench(config(tmp_path, **settings), 0, digits, tmp_path / "runs", "cpu", Silent())

    space = bhc.SingleContext((3, 4))
    bench().train("model", space)
    assert bench().train("model", space).model.training["steps"] == 12
    with pytest.raises(bhc.BhcError, match="another recipe"):
        bench(consolidate={"steps": 2}).train("model", space)
    with pytest.raises(bhc.BhcError, match="another context"):
        bench().train("model", bhc.SingleContext())


def test_images_are_shifted_when_the_models_are_trained(
    tmp_path: Path, digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(bhc, "fit", lambda model, *splits, **options: given.update(options) or model)
    monkeypatch.setattr(Bench, "_pretrained", lambda *_: pretrained)
    asked = config(tmp_path, augment="shift", consolidate=CONSOLIDATE)
    Bench(asked, 0, digits, tmp_path, "cpu", Silent()).train("one", bhc.ClassSubsets(10))
    assert given["augment"] == Shift()
    assert given["recipe"] == asked.recipe()


@dataclass(frozen=True)
class Noting(Bench):
    """Trains nothing, and notes what it was to train."""

    recipes: dict[str, Recipe] = field(default_factory=dict)
    model: bhc.Compressor | None = None

    def train(self, name: str, space: ContextSpace, *, recipe: Recipe | None = None, **_: Any) -> bhc.Compressor:
        assert recipe is not None
        assert self.model is not None
        self.recipes[name] = recipe
        return self.model


def test_a_variant_changes_the_stages_that_it_names(
    tmp_path: Path, digits: DataSet, quick_model: bhc.Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablations, "both_curves", lambda *_: {})
    variants = {
        "as_it_is": {},
        "blended": {"consolidate": {"blended": 0.5}},
        "decoder": {"learn": {"context_weight": 0.01}},
        "short": {"consolidation": False},
    }
    asked = replace(config(tmp_path, consolidate={"steps": 6}), asked={"sizes": [2], "variants": variants})
    bench = Noting(asked, 0, digits, tmp_path, "cpu", Silent(), model=quick_model)
    ablations.answer(bench)
    learn = bhc.Learn(**LEARN)  # type: ignore[arg-type]
    size = {"steps": 6, "contexts": 6, "examples": 7}
    assert bench.recipes == {
        "as_it_is": (learn, bhc.Consolidate(**size)),
        "blended": (learn, bhc.Consolidate(**size, blended=0.5)),
        "decoder": (bhc.Learn(**LEARN, context_weight=0.01), bhc.Consolidate(**size)),  # type: ignore[arg-type]
        "short": (learn,),
    }
