"""A training step against a plain Adam step of the same network on the same batch, in one run.

    python benchmarks/training_step.py

The floor is two products forward where a plain layer has one. All steps get a batch that is already drawn. The
plain step is timed with torch's Adam as it comes and with its fused form, which ours uses; ratios are given to
both. Our step is the whole one: noise, divergence, the checks of gradients, the limit on variances.
"""

import torch
from plain import PlainStep
from timing import Results, options, take_turns, write
from torch.nn import functional as F

import bhc
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import PooledNoise
from bhc.training import configure_process
from bhc.training.stages import negative_elbo, restrict
from bhc.training.step import SpikeLimit, gradient_norm

CONTEXTS, EXAMPLES = 16, 16
# As `bhc train` sets them.
STD_LIMITS = {"lenet-300-100": (0.2, None, None), "lenet-5-caffe": (0.5, None, None, None)}
GENERATORS = {"scales-only": bhc.ScalesOnly(), "low-rank": bhc.LowRank(), "full": bhc.Full()}


class LearningStep:
    """A step of the variational stage on given contexts and examples."""

    def __init__(self, network: ConditionalNetwork, x: torch.Tensor, labels: torch.Tensor) -> None:
        self.network, self.x, self.labels = network, x, labels
        self.noise = PooledNoise(0)
        self.batch = network.space.sample(CONTEXTS, 10, rng=torch.Generator().manual_seed(0))
        self.optimizer = torch.optim.Adam(network.hypernet.parameters(), fused=True)
        self.num_data = torch.full((CONTEXTS,), 12_000.0)
        self.weight = torch.ones(CONTEXTS)
        self.limit = SpikeLimit(x.device)
        self.step = 0

    def __call__(self) -> None:
        self.noise.advance(self.step)
        logits, posteriors = self.network.noisy(self.x, self.batch, noise=self.noise)
        cross_entropy = F.cross_entropy(restrict(logits, self.batch.outputs), self.labels)
        divergence = self.network.hypernet.kl(posteriors)
        loss = negative_elbo(cross_entropy, divergence, num_data=self.num_data, kl_weight=self.weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = gradient_norm(self.optimizer)
        finite = norm < torch.inf
        self.optimizer.grad_scale = self.limit.divisor(norm, finite)
        self.optimizer.found_inf = (~finite).float()
        self.optimizer.step()
        self.network.hypernet.clip_()
        self.step += 1


def main() -> None:
    arguments = options(__file__, __doc__, rounds=60).parse_args()
    rounds, slow_rounds = (2, 1) if arguments.quick else (arguments.rounds, max(1, arguments.rounds // 12))
    configure_process()
    rng = torch.Generator().manual_seed(0)
    # Sparse like digits: four pixels in five are background.
    x = torch.randint(0, 256, (CONTEXTS * EXAMPLES, 1, 28, 28), generator=rng)
    x = (x * (torch.rand(x.shape, generator=rng) < 0.2)).to(torch.uint8)
    labels = torch.randint(0, 10, (len(x),), generator=rng)
    rows: list[Results] = []
    for name, limits in STD_LIMITS.items():
        build = bhc.models.BUILDERS[name]
        rivals: dict[str, LearningStep | PlainStep] = {
            "plain": PlainStep(build(), x, labels, fused=False),
            "plain-fused": PlainStep(build(), x, labels, fused=True),
        }
        for kind, spec in GENERATORS.items():
            model = bhc.wrap(
                build(), bhc.ClassSubsets(10), example_input=x[:1], weight_generator=spec, std_limits=limits
            )
            rivals[kind] = LearningStep(model.network, x, labels)
        times = take_turns({k: v for k, v in rivals.items() if k != "full"}, rounds=rounds)
        # A full step takes as long as ten others: fewer rounds, with the plain steps beside it again.
        slow = take_turns({k: rivals[k] for k in ("plain", "plain-fused", "full")}, rounds=slow_rounds)
        ratios = {
            plain: {
                **{kind: times[kind] / times[plain] for kind in ("scales-only", "low-rank")},
                "full": slow["full"] / slow[plain],
            }
            for plain in ("plain", "plain-fused")
        }
        rows.append(
            {"model": name, "plain_ms": times["plain"], "plain_fused_ms": times["plain-fused"], "ratios": ratios}
        )
        for plain, against in ratios.items():
            shown = ", ".join(f"{kind} {ratio:.1f} x" for kind, ratio in against.items())
            print(f"{name}: {plain} step {times[plain]:.1f} ms for {len(x)} images; {shown}", flush=True)
    write(arguments, {"contexts": CONTEXTS, "examples": EXAMPLES, "rows": rows})


if __name__ == "__main__":
    main()
