import math

import pytest
import torch

from bhc.posterior import PooledNoise

from .toys import fresh_noise

LIKE = torch.zeros(1)


def pooled(seed=0, *, step=0, size=10_000, lifetime=500):
    noise = PooledNoise(seed, size=size, lifetime=lifetime)
    noise.advance(step)
    return noise


def assert_standard_normal(sample):
    """Mean 0 and variance 1 within five standard errors."""
    count = sample.numel()
    assert abs(sample.mean().item()) < 5 / math.sqrt(count)
    assert abs(sample.var().item() - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("make", [fresh_noise, pooled])
def test_equal_seeds_give_equal_bits(make):
    first, second, other = make(7), make(7), make(8)
    for shape in ((3, 4), (5,)):
        drawn = first.normal(shape, LIKE)
        assert drawn.shape == shape
        assert torch.equal(drawn, second.normal(shape, LIKE))
        assert not torch.equal(drawn, other.normal(shape, LIKE))
    assert first.normal((2, 3), LIKE.double()).dtype == torch.float64


@pytest.mark.parametrize("make", [fresh_noise, lambda seed: pooled(seed, size=1 << 18)])
def test_numbers_are_standard_normal(make):
    assert_standard_normal(make(0).normal((100, 1000), LIKE))


def test_successive_windows_are_different_numbers():
    noise = pooled()
    first, second = noise.normal((100,), LIKE), noise.normal((100,), LIKE)
    assert not set(first.tolist()) & set(second.tolist())
    assert torch.equal(PooledNoise(0, size=10_000).normal((100,), LIKE), first), "never advanced is at step zero"
    small = pooled(size=1000)
    assert all(small.normal((400,), LIKE).isfinite().all() for _ in range(50)), "a window begins anew inside the pool"


@pytest.mark.parametrize("steps", [(0, 1), (498, 499), (499, 500), (3, 1003)])
def test_different_steps_differ(steps):
    first, second = (pooled(step=step).normal((50,), LIKE) for step in steps)
    assert not torch.equal(first, second)


def test_a_resumed_run_sees_the_same_noise():
    walked = PooledNoise(5, size=10_000, lifetime=4)
    for step in range(11):
        walked.advance(step)
        expected = [walked.normal((700,), LIKE).clone() for _ in range(20)]
    resumed = pooled(5, step=10, lifetime=4)
    assert all(torch.equal(resumed.normal((700,), LIKE), window) for window in expected)


def test_the_pool_is_redrawn_at_the_end_of_its_lifetime():
    def numbers(step):
        noise = pooled(step=step, size=1000, lifetime=10)
        return {number for _ in range(40) for number in noise.normal((100,), LIKE).tolist()}

    assert len(numbers(0) & numbers(9)) > 500
    assert len(numbers(9) & numbers(10)) < 5  # of thousands of floats a few may be the same by chance


def test_a_window_larger_than_half_of_the_pool_is_drawn_anew():
    noise = pooled(size=1000)
    large = noise.normal((30, 1000), LIKE)
    assert_standard_normal(large)
    assert len(set(large.flatten().tolist())) > 29_000
    assert torch.equal(large, pooled(size=1000).normal((30, 1000), LIKE))


def test_the_caller_s_random_numbers_are_left_alone():
    state = torch.get_rng_state()
    pooled().normal((20,), LIKE)
    fresh_noise().normal((20,), LIKE)
    assert torch.equal(state, torch.get_rng_state())


def test_fresh_noise_lies_in_memory_as_what_it_goes_with():
    like = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert fresh_noise().normal(like.shape, like).stride() == like.stride()
    assert fresh_noise().normal((2, 3), like).is_contiguous()
