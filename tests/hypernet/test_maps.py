import pytest
import torch

from bhc.hypernet import Initial
from bhc.hypernet.generators import Constant, Map

from .toys import seeded


def random_map(*shape, width=7):
    return Map(torch.randn(shape, generator=seeded()), width, Initial(), rng=seeded(1))


def test_a_map_adds_a_product_with_the_embedding_to_its_offset():
    map_, embedding = random_map(3, 4, 2), torch.randn(2, 7, generator=seeded(2))
    expected = map_.offset + torch.einsum("ne,ke->kn", map_.matrix, embedding).reshape(2, 3, 4, 2)
    torch.testing.assert_close(map_(embedding), expected)


def test_a_zero_embedding_gives_the_offset_bit_for_bit():
    map_ = random_map(3, 4)
    assert torch.equal(map_(torch.zeros(2, 7)), map_.offset.expand(2, 3, 4))


@pytest.mark.parametrize("count", [1, 3])
def test_a_part_of_a_map_is_that_part_of_its_value(count):
    map_, embedding = random_map(5, 6, 2, 2), torch.randn(count, 7, generator=seeded(2))
    rows, columns = (
        torch.tensor([[4, 0], [1, 1], [0, 3]])[:count],
        torch.tensor([[1, 5, 2], [0, 1, 2], [5, 5, 0]])[:count],
    )
    expected = [own[up][:, across] for own, up, across in zip(map_(embedding), rows, columns, strict=True)]
    torch.testing.assert_close(map_.at(embedding, rows, columns), torch.stack(expected))


def test_a_constant_is_the_same_in_every_context():
    value = torch.randn(3, 4, generator=seeded())
    assert torch.equal(Constant(value)(torch.ones(5, 7)), value[None])


def test_the_tensor_a_map_starts_from_is_copied():
    value = torch.zeros(2, 3)
    for module in (Constant(value), Map(value, 7, Initial(), rng=seeded())):
        torch.nn.init.ones_(module.offset)
    assert torch.equal(value, torch.zeros(2, 3))
