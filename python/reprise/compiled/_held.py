"""Which results of a joint graph have memory of their own when a compiler has merged its loops."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from ._joint import Joint
from ._kinds import Kind, is_scatter, name_of
from ._sizes import value_of

# A compiler keeps a result in memory rather than compute a longer chain at each reader.
_LONGEST_CHAIN = 30


class Held:
    """By node: whether its result has memory, from which such results it is computed, and what is computed on the way."""

    def __init__(self, joint: Joint, saved: Collection[int] | None = None) -> None:
        """`saved`: what a plan hands over; None for all that any plan must."""
        self.joint, self._saved = joint, saved
        count = len(joint.nodes)
        self.held = [False] * count
        self.sources: list[tuple[int, ...]] = [()] * count
        self.chain: list[frozenset[int]] = [frozenset()] * count
        self.is_read_by_call_of_backward = self._read_by_calls(lambda user: not joint.in_forward[user])
        self._is_read_by_call = self._read_by_calls(lambda user: True)
        self._find()

    def _find(self) -> None:
        joint = self.joint
        outputs = {joint.roots[at] for at in (*joint.forward_outputs, *joint.backward_outputs)}
        for at, kind in enumerate(joint.kinds):
            if kind is Kind.INPUT:
                continue
            if kind is Kind.VIEW or joint.roots[at] != at:
                self.sources[at], self.chain[at] = self._through(joint.roots[at])
                continue
            if kind is Kind.ITEM:
                self.held[at] = True
                continue
            sources: dict[int, None] = {}
            chain: set[int] = set()
            for each in joint.inputs[at]:
                more, longer = self._through(joint.roots[each])
                sources.update(dict.fromkeys(more))
                chain |= longer
            self.sources[at], self.chain[at] = tuple(sources), frozenset(chain)
            self.held[at] = kind is not Kind.LOOP or not joint.fuses or self._gets_memory(at, outputs)

    def _through(self, root: int) -> tuple[tuple[int, ...], frozenset[int]]:
        """What is read from memory for it, and what is computed on the way."""
        if self.held[root]:
            return (root,), frozenset()
        return self.sources[root], self.chain[root] | {root} if self.joint.kinds[root] is Kind.LOOP else frozenset()

    def _read_by_calls(self, counts: Callable[[int], bool]) -> list[bool]:
        """By those that count, itself or through a view."""
        joint = self.joint
        result = [False] * len(joint.nodes)
        for at in reversed(range(len(joint.nodes))):
            for user in joint.users[at]:
                # A scatter's loops compute a constant inside, which gets no memory of its own.
                is_inside = joint.fuses and is_scatter(joint.nodes[user]) and not joint.inputs[at]
                is_call = joint.kinds[user] is Kind.CALL and not is_inside or name_of(joint.nodes[user]) == "cat"
                if is_call and counts(user) or joint.kinds[user] in (Kind.VIEW, Kind.ITEM) and result[user]:
                    result[at] = True
        return result

    def _gets_memory(self, at: int, outputs: set[int]) -> bool:
        joint = self.joint
        is_kept = at in joint.must_keep or joint.is_once(at) if self._saved is None else at in self._saved
        if at in outputs or self._is_read_by_call[at] or is_kept or at in joint.added:
            return True
        if len(self.chain[at]) >= _LONGEST_CHAIN or name_of(joint.nodes[at]) == "cat":
            return True
        if joint.in_forward[at]:
            return self._is_drawn(at) or sum(2 * joint.bytes[each] >= joint.bytes[at] for each in self.sources[at]) > 1
        return len(joint.users[at]) > 1 and bool(self.sources[at])

    def _is_drawn(self, at: int) -> bool:
        """A mask of dropout, or drawn numbers that are used otherwise: they take longer to draw again than most of what is as large."""
        joint = self.joint

        def is_mask(of: int) -> bool:
            return getattr(value_of(joint.nodes[of]), "dtype", None) is torch.bool

        if is_mask(at):
            return any(name_of(joint.nodes[each]) == "inductor_random" for each in self.chain[at])
        return name_of(joint.nodes[at]) == "inductor_random" and not all(map(is_mask, joint.users[at]))
