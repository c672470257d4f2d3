import pytest
import torch

from bhc.contexts import Budgets, ClassSubsets, ContextSpace, InputDomains, Joint
from bhc.errors import BhcError
from bhc.hypernet import build_embedder

from .toys import all_equal, contexts, perturb_, seeded

IMAGES = InputDomains((3, 9, 7))
SAMPLE = torch.arange(189.0).reshape(1, 3, 9, 7)
REQUESTS = {
    "classes": (ClassSubsets(10), {"classes": [3, 4]}, {"classes": [5]}),
    "domain": (IMAGES, {"domain": SAMPLE}, {"domain": SAMPLE.flip(2)}),
    "budget": (Budgets(), {"budget": 0}, {"budget": 1}),
    "joint": (
        Joint(ClassSubsets(10), IMAGES, Budgets()),
        {"classes": [3], "domain": SAMPLE, "budget": 0},
        {"classes": [3], "domain": SAMPLE, "budget": 1},
    ),
}


@pytest.mark.parametrize(("space", "first", "second"), REQUESTS.values(), ids=REQUESTS)
def test_different_contexts_embed_differently_in_the_given_width(space, first, second):
    embedder = build_embedder(space, 12, generator=seeded())
    embedding = embedder(*space.encode(contexts(space, first, second)))
    assert embedding.shape == (2, 12)
    assert not torch.allclose(embedding[0], embedding[1])


@pytest.mark.parametrize(("space", "first", "second"), REQUESTS.values(), ids=REQUESTS)
def test_equal_seeds_give_equal_bits(space, first, second):
    parameters = [list(build_embedder(space, 12, generator=seeded(seed)).parameters()) for seed in (1, 1, 2)]
    assert all_equal(parameters[0], parameters[1])
    assert not all_equal(parameters[0], parameters[2])


def test_a_budget_of_zero_embeds_to_zero_whatever_was_learnt():
    embedder = build_embedder(Budgets(), 12, generator=seeded())
    perturb_(embedder)
    assert torch.equal(embedder(torch.zeros(1, 1)), torch.zeros(1, 12))


def test_conditions_of_a_joint_space_act_on_each_other():
    space = Joint(ClassSubsets(10), Budgets())
    embedder = build_embedder(space, 12, generator=seeded())
    corners = [{"classes": [label], "budget": budget} for label in (1, 2) for budget in (0, 1)]
    a, b, c, d = embedder(*space.encode(contexts(space, *corners)))
    assert not torch.allclose(b - a, d - c, atol=1e-3)


# as one flat tuple and the embedder expects one tensor a part.
def test_a_joint_space_inside_another_is_embedded():
    space = Joint(Joint(ClassSubsets(10), Budgets()), IMAGES)
    embedder = build_embedder(space, 12, generator=seeded())
    request = {"classes": [3], "domain": SAMPLE, "budget": 0}
    assert embedder(*space.encode(contexts(space, request))).shape == (1, 12)


def test_a_space_without_an_embedder_is_refused():
    class Weather(ContextSpace):
        conditions = ("weather",)
        resolve_parts = refine = encode = to_dict = None

    with pytest.raises(BhcError, match="no embedder for contexts of type Weather"):
        build_embedder(Weather(), 12)
