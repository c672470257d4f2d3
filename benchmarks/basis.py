"""What is left of a transformer when only the first directions of its heads or of its stream are kept.

    BHC_DATA=... python benchmarks/basis.py

Two small transformers are trained on MNIST, 16 pieces of an image as tokens, one with its norms before attention, one
with norms on the stream, as BERT; norms lose their numbers to the layers around. Then coordinates are left out, without
any training: those that are written most strongly times read most strongly stay, which in principal axes are the first.
The error is that on the test images.
"""

from copy import deepcopy

import torch
from timing import Results, options, write
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.graph import Graph, capture
from bhc.graph.basis import second_moments, with_streams_freed
from bhc.graph.spaces import Space, find_free, turn_

WIDTH, HEADS, DEPTH, PIECE = 64, 4, 4, 7
SHAPE = (1, 28, 28)
PARTS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)


class Before(nn.Module):
    """Attention, then a small network on each token; both beside a stream, with norms before them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def attended(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.one(x))
        return x + self.think(self.two(x))


class After(Before):
    """The same with norms on the stream."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x + self.attended(x))
        return self.two(x + self.think(x))


class Transformer(nn.Module):
    def __init__(self, block: type[Before]) -> None:
        super().__init__()
        self.pieces, self.place = nn.Conv2d(1, WIDTH, PIECE, PIECE), nn.Parameter(torch.zeros(1, 16, WIDTH))
        blocks, norm = [block() for _ in range(DEPTH)], nn.LayerNorm(WIDTH)
        self.blocks = nn.Sequential(*([*blocks, norm] if block is Before else [norm, *blocks]))
        self.end = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pieces(x).flatten(2).transpose(1, 2) + self.place
        return self.end(self.blocks(x).mean(1))


def trained(block: type[Before], images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    net, batch = Transformer(block), 128
    steps = epochs * (len(images) // batch)
    optimiser = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(batch)[: steps // epochs]:
            optimiser.zero_grad()
            F.cross_entropy(net(images[index]), labels[index]).backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def as_numbers(images: Tensor) -> Tensor:
    return images.float() / 128 - 1


def error(graph: Graph, test: bhc.data.Split) -> float:
    parts = zip(test.inputs.split(500), test.labels.split(500), strict=True)
    wrong = sum(int((graph(as_numbers(x)).argmax(1) != y).sum()) for x, y in parts)
    return 100 * wrong / len(test.labels)


def strengths(graph: Graph, x: Tensor, *, stream: bool) -> list[tuple[Space, Tensor]]:
    """Of every coordinate what leaving it out costs, if those of a space are taken one by one."""
    spaces = [space for space in find_free(graph, SHAPE) if space.orthogonal == stream]
    moments = second_moments(graph, x, spaces)
    return [(each, m.diag() * (g.diag() if g.any() else 1)) for each, (m, g) in zip(spaces, moments, strict=True)]


def cut(graph: Graph, costs: list[tuple[Space, Tensor]], part: float) -> Graph:
    """With zeros in the place of all but some coordinates, where they are written."""
    graph = deepcopy(graph)
    for space, cost in costs:
        mask = torch.zeros_like(cost)
        mask[cost.argsort(descending=True)[: max(round(part * space.size), 1)]] = 1.0
        for end in space.ends:
            if not end.reads:
                turn_(graph, end, mask.diag())
    return graph


@torch.no_grad()
def measure(data: bhc.data.DataSet, net: nn.Module, real: Tensor) -> Results:
    graph = capture(net, real[:2])
    forms = {
        "as it is": with_streams_freed(graph, SHAPE),
        "turned": bhc.PrincipalAxes(real, shortcuts=True).turned(graph, real, SHAPE),
    }
    results: Results = {"full": error(graph, data.test)}
    for where in ("heads", "stream"):
        for name, form in forms.items():
            costs = strengths(form, real, stream=where == "stream")
            results[f"{where}, {name}"] = {str(part): error(cut(form, costs, part), data.test) for part in PARTS}
    return results


def show(norms: str, results: Results) -> None:
    print(f"norms {norms}: error of the whole network {results['full']:.2f} %")
    print("part kept".ljust(20), *(f"{part:>8.1%}" for part in PARTS))
    for name, errors in results.items():
        if isinstance(errors, dict):
            print(name.ljust(20), *(f"{value:>8.2f}" for value in errors.values()))


def main() -> None:
    arguments = options(__file__, __doc__).parse_args()
    data = bhc.data.load("mnist")
    count, epochs = (2_000, 1) if arguments.quick else (len(data.train), 2)
    images, labels = as_numbers(data.train.inputs[:count]), data.train.labels[:count]
    results: Results = {}
    for norms, block in (("before", Before), ("after", After)):
        results[norms] = measure(data, trained(block, images, labels, epochs), images[:512])
        show(norms, results[norms])
    write(arguments, results)


if __name__ == "__main__":
    main()
