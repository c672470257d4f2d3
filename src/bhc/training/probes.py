"""Which contexts a run is judged on."""

from dataclasses import replace

from bhc.contexts import Context, ContextBatch, ContextSpace, ProbeRequest
from bhc.examples import Split
from bhc.training.evaluation import Probe, spread


def find_probes(space: ContextSpace, train: Split, *, num_classes: int, limit: int = 24) -> tuple[Probe, ...]:
    """Contexts spread evenly over those that training can draw, at most ``limit`` of them.

    Where conditions may be left out, one more leaves out all.
    """
    requests = spread(space.probes(num_classes, limit), limit)
    probes = [_probe(space, train, request, num_classes) for request in requests]
    if space.optional:
        probes.append(Probe(space.resolve({}), tuple(range(num_classes))))
    return tuple(probes)


def _probe(space: ContextSpace, train: Split, request: ProbeRequest, num_classes: int) -> Probe:
    said = {name: value for part in space.parts for name, value in part.resolve_or_default(request.asked).items()}
    context = Context.of(said)
    probe = Probe(context, context.classes or request.classes or tuple(range(num_classes)), request.sources)
    # What examples tell is told by those of training, as at use: the examples judged on stay unseen.
    inputs = probe.examples(train).inputs
    seen = space.observe(ContextBatch.of([context], num_classes), inputs[None])
    values = {name: rows[0] for name, rows in seen.values.items()}
    if seen.domain is None:
        return replace(probe, context=replace(context, values=values))
    return replace(probe, context=replace(context, domain=seen.domain[0], domain_size=len(inputs), values=values))
