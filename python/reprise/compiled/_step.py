"""From a joint graph to a step of the planner's.

The planner counts memory, so that its values are the results that have memory of their own. Under a compiler that merges
loops most element-wise results never get any: an operator of the step is then everything that is computed from memory to
memory, and its chain is computed again with it. That also makes the step ten times shorter than the graph.
"""

from __future__ import annotations

from .._reprise import _SplitPlan, _SplitStep
from ._again import Cut
from ._costs import COSTS, loops
from ._held import Held
from ._joint import Joint, Others
from ._kinds import Kind, is_lowered_to_loops, name_of
from ._layouts import OTHERWISE, is_contiguous
from ._sizes import value_of


class Step:
    def __init__(self, joint: Joint, others: Others = Others(), *, in_place: bool = False) -> None:
        """`in_place`: as if backward's own loops wrote in place wherever they can. Inductor does so in most cases, but its order of
        operators depends on the plan, and with that what is read last."""
        self.joint, self._others, self._in_place = joint, others, in_place
        self._memory = Held(joint)
        self._lay_out()

    # -- Operators in order

    def _lay_out(self) -> None:
        joint = self.joint
        self.step = _SplitStep()
        self._number: dict[int, int] = {}
        self._made_by: dict[int, tuple[int, ...]] = {}
        self._outputs = joint.outputs_in_backward(self._others)
        order = [(at, False) for at in range(len(joint.nodes)) if joint.in_forward[at]]
        self.half = 0
        operators: list[tuple[int, bool]] = []
        for at, is_backward in [*order, *((at, True) for at in joint.backward_order)]:
            if joint.is_operator(at) and joint.kinds[at] is not Kind.VIEW and (self._memory.held[at] or self.joint.items(at)):
                operators.append((at, is_backward))
                self.half += not is_backward
        self.operators = operators
        self.reads: list[list[tuple[int, bool]]] = []  # by operator: what it reads from memory, and whether backward has made that
        beside = self._bytes_beside(operators)
        last_readers = {source: at for at, is_backward in operators if is_backward for source in self._memory.sources[at]}
        returned = {joint.roots[at] for at in joint.backward_outputs}
        total = 0
        numbers: dict[tuple[int, bool], int] = {}
        for slot, (at, is_backward) in enumerate(operators):
            if slot == self.half:
                self._begin_backward(beside[slot - 1] if slot else 0)
            # What must run again may do so later than what is made from it, if that need not.
            self.reads.append([(source, is_backward and joint.runs_in_backward(source) and (source, True) in numbers)
                               for source in self._memory.sources[at]])
            reads = [numbers[each] for each in self.reads[-1] if each in numbers]
            makes = []
            nanoseconds, workspace = self.cost(at)
            total += nanoseconds
            # Backward's own, read for the last time, and nobody else's.
            free = [each for each, is_made in self.reads[-1] if self._in_place and is_made and last_readers[each] == at
                    and not joint.in_forward[each] and each not in returned]
            place = next((each for each in free if self._goes_into(at, each)), None)
            if place is not None:
                numbers[at, True] = numbers[place, True]
            for made in self.joint.items(at) or (at,) if place is None else ():
                if not is_backward and self._is_fixed(made):
                    continue
                numbers[made, is_backward] = number = self.step.add_value(joint.bytes[made])
                makes.append(number)
                if not is_backward:
                    self._number[made] = number
            self.step.add_operator(nanoseconds, reads, makes, beside[slot] + workspace)
        if self.half == len(operators):
            self._begin_backward(beside[-1] if beside else 0)
        self.seconds = total / 1e9
        for at in returned:
            if (at, True) in numbers:
                self.step.keep(numbers[at, True])

    def _begin_backward(self, beside: int) -> None:
        returned = {self._number[root] for root in (self.joint.roots[at] for at in self.joint.forward_outputs)
                    if root in self._number}
        # The caller has them at least that long.
        self.step.add_operator(0, sorted(returned), [], beside + self._others.between)
        self.step.begin_backward()
        self._between = 2 if self._others.late else 1  # operators of the step that are none of the graph
        if self._others.late:
            kept = {self._number[root] for root in self.joint.outputs_in_later_backward(self._others) if root in self._number}
            self.step.add_operator(0, sorted(kept), [], beside + self._others.late)

    def values_during(self, operator: int, cut: Cut) -> list[int]:
        """What is there while it runs, the largest first: what it reads and makes, and what is handed over and read later."""
        if operator >= self.half:
            operator -= self._between
        slot = max(0, min(operator, len(self.operators) - 1))
        at, is_backward = self.operators[slot]
        values = {*self._memory.sources[at], *(self.joint.items(at) or (at,))}
        last = self._last_reads(self.operators)
        values |= {each for each in self.joint.memories(cut.saved) if (last[each] >= slot if is_backward else each < at)}
        return sorted(values, key=lambda each: (-self.joint.bytes[each], each))

    def _is_fixed(self, at: int) -> bool:
        """No plan can drop it: the caller has it, or it cannot be made again."""
        return at in self._outputs or at in self.joint.must_keep or self.joint.is_once(at)

    def _goes_into(self, at: int, place: int) -> bool:
        """Whether a loop can write its result in place of something that it reads: as many bytes, each read where it writes."""
        joint = self.joint
        if joint.kinds[at] is not Kind.LOOP or joint.bytes[at] != joint.bytes[place]:
            return False
        seen, unseen = {at}, [at]
        while unseen:
            each = unseen.pop()
            if name_of(joint.nodes[each]) in OTHERWISE or joint.kinds[each] is Kind.VIEW and not is_contiguous(value_of(joint.nodes[each])):
                return False
            more = {read for read in joint.inputs[each] if joint.kinds[read] in (Kind.LOOP, Kind.VIEW) and not self._memory.held[read]}
            unseen += more - seen
            seen |= more
        return True

    def _bytes_beside(self, operators: list[tuple[int, bool]]) -> list[int]:
        joint = self.joint
        changes = [0] * (len(operators) + 1)

        def hold(count: int, first: int, last: int) -> None:
            changes[first] += count
            changes[last + 1] -= count

        end = len(operators) - 1
        last_read = self._last_reads(operators)
        for slot, (at, is_backward) in enumerate(operators):
            for made in () if is_backward else self.joint.items(at) or (at,):
                if self._is_fixed(made):
                    hold(joint.bytes[made], slot, end if made in self._outputs else max(last_read[made], slot))
        if self.half < len(operators):
            hold(joint.bytes_beside_backward(self._others), self.half, end)
            for at in joint.freed(self._others):
                hold(joint.bytes[at], self.half, max(last_read[at], self.half))
        result, live = [], 0
        for change in changes[:-1]:
            live += change
            result.append(live)
        return result

    def _last_reads(self, operators: list[tuple[int, bool]]) -> list[int]:
        """The last operator that reads each node's result, or, in backward, something that is made again from it."""
        joint = self.joint
        last = [-1] * len(joint.nodes)
        for slot, (at, _) in enumerate(operators):
            last[at] = max(last[at], slot)
        in_backward = {at for at, is_backward in operators if is_backward}
        for at in reversed(range(len(joint.nodes))):
            for user in joint.users[at]:
                if joint.kinds[user] is Kind.INPUT:  # a size, which is handed over by itself
                    continue
                if joint.kinds[user] is Kind.CALL and user not in in_backward and joint.is_once(user):
                    continue
                last[at] = max(last[at], last[user])
        return last

    def cost(self, at: int) -> tuple[int, int]:
        """Nanoseconds, and bytes of a workspace."""
        joint = self.joint
        node = joint.nodes[at]
        if not joint.fuses or not loops(joint.kinds[at]):
            known = joint.costs.get(node.name)
            duration, workspace = known or COSTS.call(node)
            return duration, 0 if joint.fuses and not known and is_lowered_to_loops(node) else workspace
        value = value_of(node)
        device = value.device if hasattr(value, "device") else value[0].device
        read = sum(joint.bytes[each] for each in self._memory.sources[at])
        read += sum(joint.bytes[each] for each in joint.inputs[at] if joint.kinds[each] is Kind.INPUT)
        made = sum(joint.bytes[each] for each in (at, *self.joint.items(at)))
        # A loop that reads the result runs it again inside: it reads the sources, and not the result.
        moved = max(0, read - made) if self._merges_again(at) else read + made
        nanoseconds = moved * COSTS.traffic(device)
        for each in (at, *self._memory.chain[at]):
            value = value_of(joint.nodes[each])
            elements = value.numel() if hasattr(value, "numel") else value[0].numel()
            nanoseconds += COSTS.loop(joint.nodes[each], elements)
        return round(nanoseconds), 0

    def _merges_again(self, at: int) -> bool:
        """Whether all that backward reads the value with are loops."""
        joint = self.joint
        return joint.in_forward[at] and joint.kinds[at] is Kind.LOOP and not self._memory.is_read_by_call_of_backward[at]

    # -- Plans

    def cut_of(self, plan: _SplitPlan) -> Cut:
        over = plan.handed_over
        runs: dict[int, tuple[int, ...]] = {}
        for (at, _), slots in zip(self.operators[:self.half], plan.runs):
            if slots:
                places = (each - self._between for each in slots)
                runs[at] = tuple(self.operators[each][0] if each >= self.half else -1 for each in places)
        handed_over = self._outputs | {at for at, number in self._number.items() if over[number]}
        return Cut(self.joint.saved_for(handed_over, runs), runs, sorted(self.joint.in_memory))
