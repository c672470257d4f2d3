import pytest
import torch

from bhc.contexts import BinaryBudget, Budgets, ClassSubsets, Joint, SingleContext
from bhc.hypernet import build_embedder

from .toys import DOMAIN, SAMPLE, SPACES, all_equal, contexts, perturb_, seeded


@pytest.mark.parametrize(("space", "first", "second"), SPACES.values(), ids=SPACES)
def test_different_contexts_embed_differently_in_the_given_width(space, first, second):
    embedder, width = build_embedder(space, 12, rng=seeded())
    embedding = embedder(*space.encode(contexts(space, first, second)))
    assert width == (1 if isinstance(space, BinaryBudget) else 12)
    assert embedding.shape == (2, width)
    assert not torch.allclose(embedding[0], embedding[1])


@pytest.mark.parametrize("kind", ["classes", "domain", "features", "budgets", "joint"])
def test_equal_seeds_give_equal_bits(kind):
    space, *_ = SPACES[kind]
    parameters = [list(build_embedder(space, 12, rng=seeded(seed))[0].parameters()) for seed in (1, 1, 2)]
    assert all_equal(parameters[0], parameters[1])
    assert not all_equal(parameters[0], parameters[2])


def test_a_binary_budget_alone_is_its_own_embedding():
    embedder, width = build_embedder(BinaryBudget(), 12, rng=seeded())
    assert width == 1
    assert not list(embedder.parameters())
    assert embedder(torch.tensor([[0.0], [1.0]])).tolist() == [[0.0], [1.0]]


def test_a_budget_of_zero_adds_nothing_to_other_conditions_whatever_was_learnt():
    space = Joint(ClassSubsets(10), Budgets())
    embedder, _ = build_embedder(space, 12, rng=seeded())
    perturb_(embedder)
    classes, budget = embedder.parts
    (alone,) = ClassSubsets(10).encode(contexts(ClassSubsets(10), {"classes": [3]}))
    together = embedder(*space.encode(contexts(space, {"classes": [3], "budget": 0})))
    assert torch.equal(together, embedder.mix(classes(alone)))
    assert (budget(torch.ones(1, 1)) != 0).all()


@pytest.mark.parametrize("classes", [None, (3, 4)])
def test_a_single_context_embeds_to_nothing(classes):
    space = SingleContext(classes)
    embedder, width = build_embedder(space, 12, rng=seeded())
    assert width == 0
    assert not list(embedder.parameters())
    assert embedder(*space.encode(contexts(space, {}, {}))).shape == (2, 0)


def test_conditions_of_a_joint_space_act_on_each_other():
    space = Joint(ClassSubsets(10), Budgets())
    embedder, _ = build_embedder(space, 12, rng=seeded())
    corners = [{"classes": [label], "budget": budget} for label in (1, 2) for budget in (0, 1)]
    a, b, c, d = embedder(*space.encode(contexts(space, *corners)))
    assert not torch.allclose(b - a, d - c, atol=1e-3)


def test_a_joint_space_inside_another_is_embedded():
    space = Joint(Joint(ClassSubsets(10), Budgets()), DOMAIN)
    embedder, _ = build_embedder(space, 12, rng=seeded())
    request = {"classes": [3], "domain": SAMPLE, "budget": 0}
    assert embedder(*space.encode(contexts(space, request))).shape == (1, 12)
