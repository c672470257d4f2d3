"""Models of inputs of every kind, never trained, and a service on one in this process."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import uvicorn
from torch import Tensor, nn

import bhc
from bhc.examples import Split, Vocabulary
from bhc.studio.server import Settings, build_app
from bhc.studio.service import Service
from bhc.studio.workers import WorkerConfig

COUNT, CLASSES = 60, 4
NAMES = ("sitting", "walking", "running", "stairs")
VOCABULARY = Vocabulary(("who", "what", "where", "is", "the", "author", "of", "this", "?"), 7)


def model_of(
    net: nn.Module, inputs: Any, *, labelled: bool = True, vocabulary: Vocabulary | None = None
) -> bhc.Compressor:
    """A network for class subsets with a sample of such inputs."""
    several = isinstance(inputs, tuple)
    example = tuple(x[:1] for x in inputs) if several else inputs[:1]
    model = bhc.wrap(net.eval(), bhc.ClassSubsets(CLASSES), example_input=example)
    model.model.validation = Split(inputs, labels() if labelled else None)
    model.model.class_names, model.model.vocabulary = NAMES, vocabulary
    return model


def labels() -> Tensor:
    return torch.arange(COUNT) % CLASSES


def signals(channels: int, steps: int) -> Tensor:  # (N, channels, steps)
    """Waves under noise, faster from class to class; each channel has a scale of its own."""
    time = torch.linspace(0, 6.28, steps)
    rates = 1.0 + 2 * labels().float()[:, None, None] + torch.arange(channels)[:, None]
    waves = torch.sin(rates * time + torch.rand(COUNT, channels, 1) * 6) + 0.2 * torch.randn(COUNT, channels, steps)
    return waves * 10.0 ** torch.arange(channels)[:, None].sub(2) + torch.arange(channels)[:, None]


def pictures(channels: int, side: int) -> Tensor:  # (N, channels, side, side)
    """Blots, normalised: the brighter the higher the class is."""
    places = torch.linspace(-1, 1, side)
    centres = torch.rand(COUNT, 2, 1, 1) - 0.5
    apart = (places[:, None] - centres[:, 0]) ** 2 + (places - centres[:, 1]) ** 2
    blots = torch.exp(-apart * (2 + 4 * labels()[:, None, None]))
    tinted = blots[:, None] * torch.rand(COUNT, channels, 1, 1).clamp(0.4) + 0.05 * torch.randn(
        COUNT, channels, side, side
    )
    return (tinted - 0.3) / 0.2


def rows(columns: int) -> Tensor:  # (N, columns)
    return torch.randn(COUNT, columns) * 10.0 ** (torch.arange(columns) % 5 - 1) + labels()[:, None]


def texts() -> Tensor:  # (N, 7)
    asked = ("who is the author ?", "what is this ?", "where is the author of this ?", "is this what is said ?")
    return VOCABULARY.encode([asked[label] for label in labels().tolist()])


class Flat(nn.Sequential):
    """Any inputs into a few units."""

    def __init__(self, values: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(values, 16), nn.ReLU(), nn.Linear(16, CLASSES))


class Reads(nn.Module):
    """Words by an embedding."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed, self.end = nn.Embedding(words, 8), nn.Linear(8, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.end(self.embed(words).mean(1))


class Both(nn.Module):
    """A text, a row of a table, and something of many axes."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.row, self.cube = Reads(len(VOCABULARY)), nn.Linear(5, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, words: Tensor, row: Tensor, cube: Tensor) -> Tensor:
        return self.text(words) + self.row(row) + self.cube(cube.flatten(1))


def convolutional(channels: int) -> nn.Module:
    body = (nn.Conv1d(channels, 12, 5), nn.ReLU(), nn.Conv1d(12, 12, 5), nn.ReLU())
    return nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(12, CLASSES))


KINDS: Mapping[str, Callable[[], bhc.Compressor]] = {
    "series": lambda: model_of(convolutional(6), signals(6, 128)),
    "waveform": lambda: model_of(convolutional(1), signals(1, 2000)),
    "image": lambda: model_of(Flat(3 * 16 * 16), pictures(3, 16)),
    "grey": lambda: model_of(Flat(16 * 16), pictures(1, 16)[:, 0]),
    "row": lambda: model_of(Flat(12), rows(12)),
    "words": lambda: model_of(Reads(len(VOCABULARY)), texts(), vocabulary=VOCABULARY),
    "several": lambda: model_of(Both(), (texts(), rows(5), torch.randn(COUNT, 2, 2, 2, 2)), labelled=False),
    "none": lambda: model_of(Flat(81 * 2), torch.randn(COUNT, 2, 3, 3, 9), labelled=False),
}


def service_of(kind: str) -> Service:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Service(KINDS[kind](), kind)


class InThisProcess:
    """Answers as workers do, without any."""

    config, alive, pending, restarts = WorkerConfig(), 1, 0, 0

    def __init__(self, service: Service) -> None:
        self.service, self.facts, self.example = service, service.facts(), service.example()

    async def ask(self, task: str, *arguments: Any, about: str = "") -> Any:
        return getattr(self.service, task)(*arguments)

    def processes(self) -> dict[str, int | None]:
        return {}


@contextmanager
def serving_here(service: Service) -> Iterator[str]:
    """The address of a service in a thread."""
    app = build_app(InThisProcess(service), Settings())  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()
