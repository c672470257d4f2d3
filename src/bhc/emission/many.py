"""Networks for many contexts: the hypernetwork is called once for a chunk of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from bhc.contexts import Context
from bhc.emission.compressed import Compressed
from bhc.emission.emit import emit
from bhc.emission.limits import Limits
from bhc.emission.plan import Cutter
from bhc.emission.precision import Precision
from bhc.emission.watch import Watch
from bhc.errors import BhcError
from bhc.training import TrainedModel

CHUNK = 256  # contexts whose scales are in memory at once


@dataclass(frozen=True)
class Request:
    """A network that is asked for."""

    context: Context
    limits: Limits = field(default_factory=Limits)
    precision: Precision | None = None
    watch: Watch | None = None


def emit_many(
    model: TrainedModel, requests: Iterable[Request | BhcError], *, chunk: int = CHUNK
) -> Iterator[Compressed | BhcError]:
    """For each request, in order, the network that ``emit`` gives for it, or why there is none.

    A request that was already found to be wrong stands as its error. Not more than ``chunk`` requests are taken before
    their networks are handed out.
    """
    if chunk < 1:
        raise BhcError(f"a chunk has at least one context, given {chunk}")
    waiting = iter(requests)
    while part := list(islice(waiting, chunk)):
        sound = [request for request in part if isinstance(request, Request)]
        cutters = iter(Cutter.many(model.network, [request.context for request in sound]))
        for request in part:
            yield request if isinstance(request, BhcError) else _outcome(model, request, next(cutters))


def _outcome(model: TrainedModel, request: Request, cutter: Cutter) -> Compressed | BhcError:
    try:
        return emit(
            model,
            request.context,
            limits=request.limits,
            precision=request.precision,
            watch=request.watch,
            cutter=cutter,
        )
    except BhcError as error:
        return error
