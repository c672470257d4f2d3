import pytest

from bhc.formats import unrolled
from bhc.formats.unroll import PooledConvolution

from .chains import CHAINS, TORCH_REMARKS, assert_alike, chain_of, inputs

pytestmark = TORCH_REMARKS
RISING = ("relu", "relu6", "elu", "elu-of-a-whole-number", "selu", "tanh")
TAKEN_TOGETHER = {*(f"conv-{name}-pool" for name in RISING), "conv-same-pool", "conv-padding-pool", "conv-pool-twice"}


@pytest.mark.parametrize("name", CHAINS)
def test_convolutions_taken_together_with_their_pools_compute_the_same(name: str) -> None:
    chain, shape = chain_of(name)
    together = unrolled(chain)
    assert_alike(together(inputs(shape)), chain(inputs(shape)), part=1e-5)
    assert any(isinstance(step, PooledConvolution) for step in together) == (name in TAKEN_TOGETHER)
