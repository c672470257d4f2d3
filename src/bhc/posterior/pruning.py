"""From log dropout rates and a threshold to the units that stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.graph import Branch, Layer, Units
from bhc.posterior.beliefs import LayerDropout
from bhc.posterior.kept_together import BranchFinder, ChannelRounding, HeadFinder, find_pairs, where_none


@dataclass(frozen=True)
class LayerMask:
    """What stays of one layer in K contexts."""

    keep_in: Tensor  # (K, channels that arrive) bool
    keep_out: Tensor  # (K, O) bool
    rescued: Tensor  # (K,) bool: of what it reads nothing was under the threshold; the least noisy was kept
    keep_weight: Tensor | None = None  # (K or 1, O, I, *kernel) bool, where single weights go too

    @property
    def transposed(self) -> "LayerMask":
        """Of weights that are used the other way round."""
        weights = None if self.keep_weight is None else self.keep_weight.mT
        return LayerMask(self.keep_out, self.keep_in, self.rescued, weights)


@dataclass(frozen=True)
class NetworkMask:
    """What stays of a network in K contexts."""

    alive: Tensor  # (K, U) bool
    layers: tuple[LayerMask, ...]


@dataclass(frozen=True)
class InputMask:
    """All of a network in K contexts, but for inputs that a context has not."""

    layers: tuple[LayerMask | None, ...]  # None leaves a layer whole


class MaskFinder(nn.Module):
    """``m_z = [log alpha < tau]``, ``m_s = [log beta < tau]``, made to agree between layers.

    A unit lives if a scale that writes it and a scale that reads it are under the threshold. A linear reader whose
    own scale is over it skips the unit, and so does one of several writers, those of a residual stream. After a
    flatten each position has a reader of its own. The one input scale of a convolution covers all of its input and
    therefore decides nothing. At least one unit is kept of everything that a layer writes, and of each part that others
    read, but for branches beside a shortcut, and the outputs are just the context's classes. Layers that read the
    network's input read none of the ``features`` that a context has not. Heads of attention, and groups of
    convolutions, live as ``HeadFinder`` says: a pair of a query and a key is as alive as the noisier of both.
    Where single weights have rates, a unit's writers and readers are the least noisy weights that lead to it and
    from it.

    With ``nested``, for budgets, weights only ever get fewer as rates rise: of a unit that was kept although nothing
    was under the threshold, a linear layer reads one place.

    With ``rounding`` more units live beside all of these, and readers and writers skip none of those that are rounded.
    """

    reads: Tensor
    writes: Tensor
    always: Tensor
    outputs: Tensor
    must_write: Tensor
    unread: Tensor

    def __init__(
        self,
        layers: Sequence[Layer],
        units: Units,
        last: str,
        *,
        features: Mapping[str, Tensor] | None = None,
        branches: Sequence[Branch] = (),
        nested: bool = False,
    ) -> None:
        super().__init__()
        self.nested = nested
        self.branches = nn.ModuleList(BranchFinder(branch, layers) for branch in branches)
        may_go = {unit for branch in branches for unit in branch.units}
        for name, places in (features or {}).items():
            self.register_buffer(f"features_{name}", places, persistent=False)
        self.layers = tuple(layers)
        self.num_read = [len(layer.reads) for layer in layers]
        self.num_written = [layer.num_outputs for layer in layers]
        self.num_units = units.count
        for name, index in (
            ("reads", torch.cat([layer.reads for layer in layers])),
            ("writes", torch.cat([layer.writes for layer in layers])),
            ("always", torch.from_numpy(units.always)),
            ("outputs", torch.from_numpy(units.carried[last].ravel())),
        ):
            self.register_buffer(name, index, persistent=False)
        self.heads = nn.ModuleList(map(HeadFinder, units.heads))
        of_heads = [set(group.units.tolist()) for group in units.heads]
        # Of each something is kept, but for what a context, heads or branches decide.
        decided = set(self.outputs.tolist()).union(*of_heads)
        groups = [group for group in units.needed_together() if not set(group) <= decided | may_go]
        self.heads_may_go = [own <= may_go for own in of_heads]
        for place, group in enumerate(groups):
            self.register_buffer(f"group_{place}", torch.tensor(group), persistent=False)
        reads = [set(layer.reads.tolist()) for layer in layers]
        feeding = [*groups, *of_heads]
        self.feeding = [[place for place, group in enumerate(feeding) if read & set(group)] for read in reads]
        self.num_groups = len(groups)
        # Who adds to what others write too may leave it to them, but not what is never cut.
        writers = torch.bincount(self.writes, minlength=units.count)
        self.one_of_several = [
            layer.groups == 1
            and not layer.kept
            and bool((writers[layer.writes] > 1).any())  # a layer alone with its units needs no second look
            and not set(layer.writes.tolist()) & set(self.outputs.tolist())
            for layer in layers
        ]
        must_write = self.always | torch.from_numpy(units.tied) | (writers == 1)
        self.register_buffer("must_write", must_write[self.writes], persistent=False)
        # What no layer reads, but a product of two values or a sum: it hangs on its writers alone.
        unread = torch.bincount(self.reads, minlength=units.count) == 0
        unread[self.outputs] = False
        self.register_buffer("unread", unread.nonzero().flatten(), persistent=False)
        self.some_are_unread = bool(unread.any())
        self.paired = nn.ModuleDict(
            find_pairs(layers, set(units.tied.nonzero()[0].tolist()).intersection(set().union(*of_heads)))
        )

    def forward(
        self,
        dropouts: Sequence[LayerDropout],
        threshold: Tensor,  # (K, 1)
        outputs: Tensor,  # (K, C) bool, the classes of each context
        inputs: Tensor | None = None,  # (K, F) bool, the features of each
        *,
        rounding: ChannelRounding | None = None,
    ) -> NetworkMask:
        noisiest_link = self.noisiest_links(dropouts, outputs)
        alive, forced = self._alive(noisiest_link, threshold, outputs, rounding)
        gone = [branch.goes_(alive) for branch in self.branches]  # type: ignore[operator]
        kept = alive if rounding is None else self._without_branches(rounding.up(alive, noisiest_link), gone)
        quiet: Sequence[Tensor | None] = [None] * len(self.layers)
        if self.nested:
            under = noisiest_link < threshold
            for heads in self.heads:
                heads.without_dead_(under)  # type: ignore[operator]
            quiet = under[:, self.reads].split_with_sizes(self.num_read, dim=1)
        arriving = alive[:, self.reads].split_with_sizes(self.num_read, dim=1)
        leaving = alive[:, self.writes].split_with_sizes(self.num_written, dim=1)
        nothing = torch.zeros_like(outputs[:, 0])
        masks = []
        musts = self.must_write.split_with_sizes(self.num_written)
        for layer, dropout, keep_in, own, keep_out, feeding, one_of_several, must_write in zip(
            self.layers, dropouts, arriving, quiet, leaving, self.feeding, self.one_of_several, musts, strict=True
        ):
            rescued = _either(nothing, *(forced[place] for place in feeding))
            presence_mask, unread = self.features_at(layer, inputs), None
            if presence_mask is not None:
                keep_in = keep_in & presence_mask
            if layer.may_skip:
                keep_in, unread = _skip(keep_in, _of_readers(layer, dropout), threshold, own)
                rescued = _either(rescued, unread)
            if one_of_several:
                rates = _of_writers(dropout)
                rates = None if rates is None else rates.masked_fill(must_write, -torch.inf)
                keep_out, _ = _skip(keep_out, rates, threshold)
            if rounding is not None:
                keep_in = rounding.read(layer, keep_in, kept, presence_mask, _of_readers(layer, dropout), unread)
                keep_out = rounding.written(layer, keep_out, kept)
            masks.append(LayerMask(keep_in, keep_out, rescued, _under(dropout.weights, threshold)))
        return NetworkMask(kept, tuple(self._without_layers(masks, gone)))

    def _without_branches(self, alive: Tensor, gone: Sequence[Tensor]) -> Tensor:
        """What went is not rounded up."""
        for branch, lost in zip(self.branches, gone, strict=True):
            alive[:, branch.units] &= ~lost[:, None]  # type: ignore[index]
        return alive

    def _without_layers(self, masks: list[LayerMask], gone: Sequence[Tensor]) -> list[LayerMask]:
        """Layers of branches that go read nothing, and but for the last write nothing."""
        for branch, lost in zip(self.branches, gone, strict=True):
            stays = ~lost[:, None]
            for index in (*branch.inner, *branch.ends):  # type: ignore[misc]
                mask = masks[index]
                keep_out = mask.keep_out & stays if index in branch.inner else mask.keep_out  # type: ignore[operator]
                masks[index] = replace(
                    mask, keep_in=mask.keep_in & stays, keep_out=keep_out, rescued=mask.rescued & ~lost
                )
        return masks

    def features_at(self, layer: Layer, inputs: Tensor | None) -> Tensor | None:  # (K, channels that arrive) bool
        """Which of a context's features arrive at a layer; None if all do, or none is a feature."""
        if inputs is None:
            return None
        places = getattr(self, f"features_{layer.name}", None)
        return None if places is None else inputs[:, places]

    def present_inputs(self, outputs: Tensor, inputs: Tensor | None) -> InputMask | None:
        """All units, but of the network's input only the features that a context has; None where it has all."""
        if inputs is None:
            return None
        masks: list[LayerMask | None] = []
        for layer in self.layers:
            presence_mask = self.features_at(layer, inputs)
            everything = outputs.new_ones(len(outputs), layer.num_outputs)
            none = torch.zeros_like(everything[:, 0])
            masks.append(None if presence_mask is None else LayerMask(presence_mask, everything, none))
        return InputMask(tuple(masks))

    def threshold_without(self, gone: Tensor, dropouts: Sequence[LayerDropout], outputs: Tensor) -> Tensor:  # (1, 1)
        """The threshold that takes this part of the units away, (), all contexts together."""
        rates = self.noisiest_links(dropouts, outputs).flatten().sort().values
        stay = ((1 - gone) * len(rates)).round().long().reshape(1, 1)
        threshold = torch.cat([rates, rates.new_full((1,), torch.inf)]).take(stay)
        return threshold.clamp(min=torch.finfo(rates.dtype).min)  # minus infinity is what is never cut

    def noisiest_links(self, dropouts: Sequence[LayerDropout], outputs: Tensor) -> Tensor:  # (K, U)
        """What each unit's life hangs on: it stays while this is under the threshold."""
        writers = [_of_writers(dropout) for dropout in dropouts]
        readers = [_of_readers(layer, dropout) for layer, dropout in zip(self.layers, dropouts, strict=True)]
        written = self._least_noisy(self.writes, writers, self.num_written, like=outputs)
        read = self._least_noisy(self.reads, readers, self.num_read, like=outputs)
        if self.some_are_unread:
            read = read.index_fill(1, self.unread, -torch.inf)  # assigning would wait for a GPU
        for index, writer in self.paired.items():
            written = writer.add_rates(written, writers[int(index)])  # type: ignore[operator]
        links = torch.maximum(written, read)
        for heads in self.heads:
            links = heads.add_links(links)  # type: ignore[operator]
        links = links.masked_fill(self.always, -torch.inf)
        return self._add_branches(links, writers, outputs) if self.branches else links

    def _add_branches(self, links: Tensor, writers: Sequence[Tensor | None], outputs: Tensor) -> Tensor:  # (K, U)
        """With those of branches, outer ones first; they write the outputs that a context has, however noisy."""
        own = links[:, self.outputs]
        links = links.index_copy(1, self.outputs, torch.where(outputs, -torch.inf, torch.inf))
        for branch in self.branches:
            links = branch.add_links(links, writers)  # type: ignore[operator]
        return links.index_copy(1, self.outputs, own)

    def _alive(
        self, noisiest_link: Tensor, threshold: Tensor, outputs: Tensor, rounding: ChannelRounding | None
    ) -> tuple[Tensor, list[Tensor | None]]:  # (K, U), and for each group (K,) where one unit had to be rescued
        alive = noisiest_link < threshold
        alive[:, self.outputs] = outputs  # heads among them, as of experts with something to say of every class
        steps = [None] * len(self.heads) if rounding is None else rounding.head_steps
        rescued = [
            heads.choose_(alive, noisiest_link, threshold, may_go=may_go, steps=own)  # type: ignore[operator]
            for heads, may_go, own in zip(self.heads, self.heads_may_go, steps, strict=True)
        ]
        forced: list[Tensor | None] = []
        for place in range(self.num_groups):
            group: Tensor = getattr(self, f"group_{place}")
            lost = where_none(alive[:, group])
            if lost is not None:
                quietest = group[noisiest_link[:, group].argmin(1, keepdim=True)]  # (K, 1)
                alive = alive.scatter(1, quietest, alive.gather(1, quietest) | lost[:, None])
            forced.append(lost)
        return alive, [*forced, *rescued]

    def _least_noisy(
        self, index: Tensor, rates: Sequence[Tensor | None], counts: Sequence[int], *, like: Tensor
    ) -> Tensor:  # (K, U)
        """The smallest of the rates at each unit; those that a layer does not have count as minus infinity."""
        contexts = len(like)
        kept = torch.full((), -torch.inf, device=like.device)
        each = zip(rates, counts, strict=True)
        parts = [(kept if rate is None else rate).expand(contexts, count) for rate, count in each]
        worst = torch.full((contexts, self.num_units), torch.inf, device=like.device)
        return worst.scatter_reduce(1, index.expand(contexts, -1), torch.cat(parts, dim=1), "amin")


def _of_writers(dropout: LayerDropout) -> Tensor | None:  # (K, O)
    return dropout.out_log_dropout if dropout.weights is None else dropout.weights.flatten(2).amin(2)


def _of_readers(layer: Layer, dropout: LayerDropout) -> Tensor | None:  # (K, channels that arrive)
    if dropout.weights is not None:
        apart = dropout.weights.flatten(3) if layer.has_kernel else dropout.weights[..., None]
        by_group = apart.unflatten(1, (layer.groups, -1))  # (K, groups, O of a group, I of a group, kernel)
        return by_group.amin((2, 4)).flatten(1)
    return None if layer.has_kernel else dropout.in_log_dropout


def _skip(
    arriving: Tensor, rates: Tensor | None, threshold: Tensor, among: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What a layer reads of what arrives, or writes of what lives, (K, n), and where it would be nothing, (K,).

    With ``among`` it is of these alone, unless none is left.
    """
    if rates is None:
        return arriving, None
    reads = arriving & (rates < threshold)
    if among is not None:
        reads = reads & among
    unread = where_none(reads)
    if unread is None:
        return reads, None
    finite = rates.clamp(max=torch.finfo(rates.dtype).max)  # what arrives comes before what does not, always
    quietest = torch.where(arriving, finite, torch.inf).argmin(1)
    return reads | (unread[:, None] & F.one_hot(quietest, arriving.shape[1]).bool()), unread


def _either(*flags: Tensor | None) -> Tensor:
    """Where one of them is set."""
    return reduce(torch.logical_or, [flag for flag in flags if flag is not None])


def _under(rates: Tensor | None, threshold: Tensor) -> Tensor | None:
    return None if rates is None else rates < threshold.reshape(-1, *[1] * (rates.dim() - 1))
