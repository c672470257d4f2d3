"""The facade: a model that hands out networks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bhc.contexts import ContextSpace, SampleMean, check_space, is_ours
from bhc.emission import (
    CHUNK,
    AlarmSamples,
    Compressed,
    Limits,
    Quantisation,
    Request,
    VarianceBits,
    emit,
    emit_many,
    has_dial,
    weights_for,
)
from bhc.errors import BhcError, renamed, renamed_in, warn
from bhc.examples import AnyVocabulary
from bhc.graph import MOST_WHOLE, DynamicAxes, capture
from bhc.graph.basis import Basis
from bhc.hub import MOST_BYTES, push_to_hub, run_folder, save_pretrained
from bhc.hypernet import ConditionalNetwork, Design, GeneratorSpec, Initial, ScalesOnly
from bhc.posterior import Multiples
from bhc.tasks import Task
from bhc.training import (
    RunFolder,
    TrainedModel,
    load_run,
    save_run,
)


class Compressor:
    """A network wrapped for contexts: ``fit`` it once, then ``compress`` for any context in milliseconds."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model

    @property
    def network(self) -> ConditionalNetwork:
        return self.model.network

    @property
    def space(self) -> ContextSpace:
        return self.network.space

    @property
    def vocabulary(self) -> AnyVocabulary | None:
        """How texts become numbers; None for a network that does not read words."""
        return self.model.vocabulary

    @renamed(precision="quantisation")
    def compress(
        self,
        *,
        threshold: float | None = None,
        max_bytes: int | None = None,
        max_flops: int | None = None,
        max_error: float | None = None,
        max_ram_bytes: int | None = None,
        max_latency_ms: float | None = None,
        confidence: float | None = None,
        max_weights: int | None = None,
        margin: float | None = None,
        quantisation: Quantisation | None = None,
        flag_outside: float | None = None,
        round_to: int | Mapping[str, int] | None = None,
        **conditions: Any,
    ) -> Compressed:
        """A plain small network for one context.

        Conditions are those the model was wrapped for: ``classes=[3, 4]``, ``domain=samples``, ``budget=1``.

        Without limits it is the smallest network that is as good as the original: at 95 % confidence its error is less
        than ``margin`` points higher, 0.5 unless said otherwise, by a paired test on the run's validation sample.

        Limits are promises about the result, alone or together: the bytes of the packed file, the FLOPs of one
        input, the weights that stay, the error on the run's validation sample in percent, constants and activations of
        the C form, the median latency in onnxruntime on this machine (batch 1, one thread). Of the networks that keep
        them, the one with the lowest validation error; with ``max_error`` alone, the smallest. ``budget`` from 0, the
        original, to 1, the smallest, is such a limit on weights: equal steps make networks smaller by equal factors.
        ``threshold`` cuts the hypernetwork's network exactly there (lower is smaller).

        With ``confidence``, such as 0.95, ``max_error`` is about new data of the context and not about a sample:
        the smallest network is emitted that the run's calibration images prove to keep it, at that confidence.

        ``quantisation`` is ``VarianceBits()`` by default, bit widths from the posterior; ``Float32()`` only prunes.

        ``flag_outside=0.05`` lets the network flag inputs outside its context, such as images of other classes, at
        the cost of flagging at most 5 % of the context's own in the validation sample, or in that of the domain.

        ``round_to=8`` keeps channels in multiples of 8, rounded up, in every layer but the last; ``{"fc1": 16}`` those
        that the layers named write. Limits are promises about the rounded network.
        """
        limits = Limits(
            threshold,
            max_bytes,
            max_flops,
            max_error,
            max_ram_bytes,
            max_latency_ms,
            confidence,
            max_weights,
            margin,
        )
        request = self._request(
            conditions, limits, quantisation=quantisation, flag_outside=flag_outside, round_to=round_to
        )
        return emit(self.model, request)

    def request(self, given: Mapping[str, Any]) -> Request:
        """What ``compress(**given)`` is asked, checked and not yet done."""
        conditions = renamed_in(dict(given), "compress", {"precision": "quantisation"})
        options = {name: conditions.pop(name, None) for name in ("quantisation", "flag_outside", "round_to")}
        limits = {field.name: conditions.pop(field.name, None) for field in fields(Limits)}
        return self._request(conditions, Limits(**limits), **options)

    def compress_many(
        self, contexts: Iterable[Mapping[str, Any]], *, chunk: int = CHUNK, **common: Any
    ) -> Iterator[Compressed]:
        """Networks for many contexts, one after the other, as ``compress`` gives them.

        Each context is what ``compress`` takes, such as ``{"classes": [3, 4], "max_bytes": 600}``; ``common`` are
        limits, a quantisation, or a rate of false alarms for all that do not say otherwise. The hypernetwork is called
        once for ``chunk`` contexts, and no more than that are held at once. The first context without a network ends it
        with an error that names it; ``try_many`` goes on.
        """
        for number, outcome in enumerate(self.try_many(contexts, chunk=chunk, **common), 1):
            if isinstance(outcome, BhcError):
                raise BhcError(f"context {number}: {outcome.problem}", hint=outcome.hint) from outcome
            yield outcome

    def try_many(
        self, contexts: Iterable[Mapping[str, Any] | BhcError], *, chunk: int = CHUNK, **common: Any
    ) -> Iterator[Compressed | BhcError]:
        """``compress_many`` with an error in the place of each network that there is none for, or was to be none."""
        return emit_many(self.model, (self._request_or_error(each, common) for each in contexts), chunk=chunk)

    def _request_or_error(self, given: Mapping[str, Any] | BhcError, common: Mapping[str, Any]) -> Request | BhcError:
        try:
            return given if isinstance(given, BhcError) else self.request({**common, **given})
        except BhcError as error:
            return error

    def _request(
        self,
        conditions: Mapping[str, Any],
        limits: Limits,
        *,
        quantisation: Quantisation | None,
        flag_outside: float | None,
        round_to: int | Mapping[str, int] | None,
    ) -> Request:
        conditions, limits = self._dialled(dict(conditions), limits)
        context, sample = self.space.resolve(self._as_numbers(conditions)), conditions.get("domain")
        alarm_samples = None
        if flag_outside is not None:
            if isinstance(sample, SampleMean | str):
                raise BhcError(
                    "flag_outside needs the samples of the domain, and only their mean is left",
                    hint="give the samples themselves, or leave flag_outside out",
                )
            inputs = None if sample is None else torch.as_tensor(sample).float()
            alarm_samples = AlarmSamples.of(self.model, context, flag_outside, sample=inputs)
        multiples = Multiples.of(round_to, self.network.layers, self.network.find_masks.outputs)
        return Request(context, limits, quantisation or VarianceBits(), alarm_samples, multiples)

    def _dialled(self, conditions: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], Limits]:
        """A budget that training knew nothing of is a limit on weights."""
        if not has_dial(self.model) or (budget := conditions.pop("budget", None)) is None:
            return conditions, limits
        most = weights_for(self.model, budget)
        return conditions, replace(
            limits, max_weights=most if limits.max_weights is None else min(most, limits.max_weights)
        )

    def _as_numbers(self, conditions: Mapping[str, Any]) -> Mapping[str, Any]:
        """With features that are words as their numbers."""
        words = conditions.get("features")
        if not isinstance(words, Sequence) or not words or not all(isinstance(word, str) for word in words):
            return conditions
        if self.vocabulary is None:
            raise BhcError("features are given as words, and this model has no vocabulary", hint="give their places")
        return {**conditions, "features": self.vocabulary.numbers_of(words)}

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run folder that ``bhc.load`` reads."""
        folder = RunFolder(Path(path))
        folder.open(overwrite=overwrite)
        save_run(folder, self.model)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False, license: str | None = None) -> None:
        """Write a run folder with a model card, ``README.md``, as repositories of the Hugging Face hub have one.

        Figures in the card are the run's own. ``license`` is one by the hub's name, such as ``"apache-2.0"``.
        ``overwrite=True`` replaces a run and a ``README.md`` that are there.
        """
        save_pretrained(self.model, Path(folder), overwrite=overwrite, license=license)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model using bhc.",
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        license: str | None = None,
    ) -> str:
        """Put the run and its model card into a repository of the Hugging Face hub; the address of the commit.

        The validation sample goes along, and the calibration images where there are some: mind who may see them. The
        repository is made where there is none, ``private`` if asked for. Files of a run that was pushed before go in
        the same commit; an old card is replaced, other files stay. ``branch`` must be there. With ``create_pr=True``
        it is a pull request. Without ``token`` it is that of ``hf auth login``. Needs ``pip install 'bhc[hub]'``.
        """
        return push_to_hub(
            self.model,
            repo_id,
            commit_message=commit_message,
            private=private,
            token=token,
            branch=branch,
            create_pr=create_pr,
            license=license,
        )


@renamed(generator="weight_generator")
def wrap(
    net: nn.Module,
    space: ContextSpace,
    *,
    example_input: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    dynamic_axes: DynamicAxes = (),
    basis: Basis | None = None,
    weight_generator: GeneratorSpec | None = None,
    initial: Initial | None = None,
    family: str = "io-gnj",
    std_limits: tuple[float | None, ...] | None = None,
    prior_stds: tuple[float, ...] | None = None,
    keep: Sequence[str] = (),
    output: str | int | None = None,
    task: Task | None = None,
    pretrained: bool = True,
    seed: int = 0,
) -> Compressor:
    """Prepare a trained network for compression by context; ``net`` itself is not changed.

    Whatever ``torch.export`` captures is taken. What has no rule for being cut runs as it is and stays whole; a warning
    says so where that is more than half of the weights.

    ``example_input`` is a batch as ``net`` takes it, of any size: a tensor, a tuple of them where it takes several, or
    a dict by the names of its forward pass. The size of the batch is free; those along ``dynamic_axes`` too, for
    example ``(1,)`` for texts of any length.

    ``basis=bhc.PrincipalAxes(inputs)`` turns the network to the principal axes of real activations first, wherever it
    computes the same in other coordinates: in the heads and, around norms, in the stream of a transformer. Units then
    are directions, of which the last can go.

    ``weight_generator`` says who writes the weights (``ScalesOnly()``, ``LowRank()``, ``Full()``), ``initial`` how it
    starts (by default exactly at ``net``). ``std_limits`` bounds the weights' standard deviations by layer,
    ``prior_stds`` are those of their prior: by default 1, and in networks of more than four layers the size of each
    layer's weights.
    ``keep`` names layers, as ``net.named_modules()`` does, of which no input or output is to be cut.
    ``output`` is the place or name of the result that counts, where a network returns several.
    ``task`` says what outputs are for, which ``fit`` may say too: here it is needed where classes and outputs are not
    the same, as where a segmentation has an output for the background.
    ``pretrained=False`` says that ``net`` knows nothing yet and must not teach.
    """
    kept = tuple(name.replace(".", "_") for name in keep)
    design = Design(weight_generator or ScalesOnly(), initial or Initial.exact(), family, std_limits, kept, prior_stds)
    rng = Generator().manual_seed(seed)
    graph = capture(net, example_input, output=output, dynamic_axes=dynamic_axes)
    first = example_input[0] if isinstance(example_input, Sequence) else example_input
    shape = first.shape[1:] if isinstance(first, Tensor) else ()
    if basis is not None:
        graph = _checked(basis).turned(graph, example_input, shape)
    network = ConditionalNetwork(graph, space, design, input_shape=shape, task=task, pretrained=pretrained, rng=rng)
    if not all(is_ours(part) for part in space.parts):
        check_space(space, network.num_classes)
    _warn_of_whole(network)
    return Compressor(TrainedModel(network))


def _checked(basis: Any) -> Basis:
    if not isinstance(basis, Basis):
        raise BhcError(f"basis is a {type(basis).__name__}", hint="give bhc.PrincipalAxes(inputs), or None")
    return basis


def _warn_of_whole(network: ConditionalNetwork) -> None:
    """Say so where less than half of the weights can go."""
    stay = min(sum(each.weights for each in network.whole), network.num_weights)  # tied ones are told twice
    if 2 * stay > network.num_weights:
        shown = "; ".join(map(str, network.whole[:MOST_WHOLE]))
        more = f"; and {len(network.whole) - MOST_WHOLE} more" if len(network.whole) > MOST_WHOLE else ""
        warn(f"{100 * stay / network.num_weights:.0f} % of the weights stay whole: {shown}{more}")


def load(path: str | Path, *, task: Task | None = None) -> Compressor:
    """Read a finished run folder; one that was trained for a task of your own needs it, given or registered."""
    return Compressor(load_run(Path(path), task))


def from_pretrained(
    folder_or_id: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    max_bytes: int = MOST_BYTES,
    task: Task | None = None,
) -> Compressor:
    """Read a run from a folder, or from the Hugging Face hub by its ``owner/name``; a folder of that name comes first.

    Fetched are the files that the run names and no others, at most ``max_bytes`` of them (8 GiB), and kept in the
    hub's cache or in ``cache_dir``; where the hub cannot be reached, what is there is taken. Nothing in them is
    unpickled or run. ``revision`` is a branch, a tag or a commit; ``task`` is as in
    ``load``. Needs ``pip install 'bhc[hub]'`` for the hub.
    """
    folder = run_folder(
        folder_or_id,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        force_download=force_download,
        local_files_only=local_files_only,
        max_bytes=max_bytes,
    )
    return load(folder, task=task)
