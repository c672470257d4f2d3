"""What goes as a whole or not at all: heads of attention, groups of convolutions, pairs of queries and keys, branches
beside a shortcut."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.graph import Branch, Heads, Layer
from bhc.posterior.beliefs import LayerDropout
from bhc.posterior.multiples import HeadSteps, quietest, rounded_up_to


class HeadFinder(nn.Module):
    """Which heads of attention, or groups of a convolution, stay, and which units of each: of every part equally many,
    the least noisy of each.

    A part is as alive as its least noisy unit, a head as its noisiest part. The heads that stay keep as many units of a
    part as the one of them that has most under the threshold, so that rows have one length.
    """

    rows: Tensor  # (H,)

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.parts = heads.parts
        self.register_buffer("rows", torch.from_numpy(heads.rows), persistent=False)
        for place, part in enumerate(heads.parts):
            self.register_buffer(f"units_{place}", torch.from_numpy(part.units), persistent=False)
            columns = np.array(part.columns).reshape(-1, part.units.shape[1])
            self.register_buffer(f"columns_{place}", torch.from_numpy(columns), persistent=False)

    def units(self, place: int) -> Tensor:  # (H, n)
        own: Tensor = getattr(self, f"units_{place}")
        return own

    def columns(self, place: int) -> Tensor:  # (some, n)
        own: Tensor = getattr(self, f"columns_{place}")
        return own

    def add_links(self, links: Tensor) -> Tensor:  # (K, U)
        """With those of the heads themselves, without which none of their units lives, and of what all heads share."""
        by_part = [links[:, self.units(place)].amin(2) for place in range(len(self.parts))]
        of_heads = torch.stack(by_part).amax(0)  # (K, H)
        links = links.index_copy(1, self.rows, of_heads)
        for place in range(len(self.parts)):
            units = self.units(place)
            own = torch.maximum(links[:, units], of_heads[..., None])
            links = links.index_copy(1, units.flatten(), own.flatten(1))
            for columns in self.columns(place):
                links = links.index_copy(1, columns, links[:, self.units(place)].amin(1))
        return links

    def without_dead_(self, under: Tensor) -> None:  # (K, U)
        """Of what is under a threshold, take away in place what is of heads that are not."""
        stays = under[:, self.rows, None]
        for place in range(len(self.parts)):
            under[:, self.units(place)] &= stays

    def choose_(
        self, alive: Tensor, links: Tensor, threshold: Tensor, *, may_go: bool, steps: HeadSteps | None = None
    ) -> Tensor | None:
        """Which of the units of each head live, in place; where one head had to be rescued, (K,).

        With ``steps`` a multiple of so many stay, or all.
        """
        wanted, noise = alive[:, self.rows], links[:, self.rows]
        lost, stays = None if may_go else where_none(wanted), wanted
        if lost is not None:
            stays = wanted | (F.one_hot(noise.argmin(1), len(self.rows)).bool() & lost[:, None])
        if steps is not None:
            stays = quietest(stays, noise, rounded_up_to(stays.sum(1, keepdim=True), steps.heads))
        alive[:, self.rows] = stays
        for place, part in enumerate(self.parts):
            own = links[:, self.units(place)].masked_fill(~stays[..., None], torch.inf)  # (K, H, n)
            if part.alike:
                own = own.amin(1, keepdim=True).expand_as(own)
            under = (own < threshold[..., None]) & wanted[..., None]  # one that is rescued has no say
            most = under.sum(2).amax(1).clamp(min=1)
            if steps is not None:
                most = rounded_up_to(most, steps.parts[place])
            ranks = own.argsort(dim=2, stable=True).argsort(dim=2)
            kept = (ranks < most[:, None, None]) & stays[..., None]
            alive[:, self.units(place)] = kept
            for columns in self.columns(place):
                alive[:, columns] = kept.any(1)
        return lost


class BranchFinder(nn.Module):
    """Whether a branch beside a shortcut goes: where it keeps no unit of a layer, or its ends write none.

    The last layer then gives its bias, and reads nothing.
    """

    units: Tensor

    def __init__(self, branch: Branch, layers: Sequence[Layer]) -> None:
        super().__init__()
        place = {layer.name: index for index, layer in enumerate(layers)}
        self.inner = frozenset(place[name] for name in branch.inner)
        self.ends = tuple(place[end.layer] for end in branch.ends)
        self.num_groups = len(branch.groups)
        self.register_buffer("units", torch.tensor(branch.units), persistent=False)
        for number, group in enumerate(branch.groups):
            self.register_buffer(f"group_{number}", torch.tensor(group), persistent=False)
        for end in self.ends:
            self.register_buffer(f"writes_{end}", layers[end].writes, persistent=False)

    def add_links(self, links: Tensor, writers: Sequence[Tensor | None]) -> Tensor:  # (K, U)
        """No unit is more alive than its branch, which is as alive as its noisiest necessary part.

        A part is one of the groups, as alive as the least noisy unit of it, or the ends together, as alive as the
        least noisy number that they write to a unit of the stream:
        ``max(max_g min_(u in g) l_u, min_j max(l_j, s_j))``.
        """
        groups = [links[:, getattr(self, f"group_{number}")].amin(1) for number in range(self.num_groups)]
        ends = [self._written(end, links, writers[end]).amin(1) for end in self.ends]
        noisiest = torch.maximum(torch.stack(groups).amax(0), torch.stack(ends).amin(0))
        return links.index_copy(1, self.units, torch.maximum(links[:, self.units], noisiest[:, None]))

    def _written(self, end: int, links: Tensor, rates: Tensor | None) -> Tensor:  # (K, O)
        read = links[:, getattr(self, f"writes_{end}")]
        return read if rates is None else torch.maximum(read, rates)

    def goes_(self, alive: Tensor) -> Tensor:  # (K,)
        """Take its units away where it does, in place."""
        empty = [~alive[:, getattr(self, f"group_{number}")].any(1) for number in range(self.num_groups)]
        gone = torch.stack(empty).any(0)
        alive[:, self.units] = alive[:, self.units] & ~gone[:, None]
        return gone


class PairedWriter(nn.Module):
    """One of several layers that must all write some units, as those of queries and keys must.

    Such a unit is as alive as the noisiest of its layers, and a layer writes it as its least noisy row does.
    """

    units: Tensor  # (n,)
    rows: Tensor  # (r,) outputs of the layer that write them
    at: Tensor  # (r,) which of the units each writes

    def __init__(self, writes: Tensor, units: Sequence[int]) -> None:
        super().__init__()
        place = {unit: at for at, unit in enumerate(units)}
        rows = [row for row, unit in enumerate(writes.tolist()) if unit in place]
        at = [place[int(writes[row])] for row in rows]
        for name, numbers in (("units", units), ("rows", rows), ("at", at)):
            self.register_buffer(name, torch.tensor(numbers), persistent=False)

    def add_rates(self, written: Tensor, rates: Tensor | None) -> Tensor:  # (K, U)
        """The noisier of what others and this layer say."""
        if rates is None:
            return written
        own = torch.full((len(written), len(self.units)), torch.inf, device=written.device)
        rates = rates.expand(len(written), -1)[:, self.rows]
        own = own.scatter_reduce(1, self.at.expand(len(written), -1), rates, "amin")
        return written.index_copy(1, self.units, torch.maximum(written[:, self.units], own))


def find_pairs(layers: Sequence[Layer], factors: set[int]) -> dict[str, PairedWriter]:
    """By layer: the units of heads that it must write, and others too, since they are multiplied."""
    own = [set(layer.writes.tolist()) & factors for layer in layers]
    counts = Counter(unit for units in own for unit in units)
    found = {index: sorted(unit for unit in units if counts[unit] > 1) for index, units in enumerate(own)}
    return {str(index): PairedWriter(layers[index].writes, units) for index, units in found.items() if units}


def of_writers(dropout: LayerDropout) -> Tensor | None:  # (K, O)
    return dropout.out_log_dropout if dropout.weights is None else dropout.weights.flatten(2).amin(2)


def where_none(kept: Tensor) -> Tensor | None:  # (K,)
    """The contexts that keep none of (K, n). None if there is no such context; who asks a GPU that waits for it, so
    there it is never asked."""
    some = kept.any(1)
    return None if some.device.type == "cpu" and bool(some.all()) else ~some
