"""The bytes that the halves of a joint graph will take, from the order in which their backend will run them."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import fx

from ._again import Cut, repeating
from ._costs import COSTS, loops
from ._inductor import Schedule, schedule_of
from ._joint import InMemory, Joint, Layouts, Others, Vectors
from ._kinds import Kind, is_size, kind_of
from ._layouts import compute_as_default, has_convolution, strides_laid_out, strides_of
from ._rows import reads_out_of_order
from ._sizes import bytes_of
from ._timeline import Handing
from ._torch import backward_extracted_once, partitioners, without_warnings_of_nodes


class Halves:
    """Bytes above those live before the graph runs: while forward runs, while others do, and while backward does."""

    def __init__(self, joint: Joint, cut: Cut, others: Others = Others(), known: list[int] | None = None) -> None:
        """`known`: the bytes that inductor was told for each operator of backward; None to find them."""
        saved = cut.saved
        forward, backward = _split(joint, cut)
        self.hand_over(joint, cut)
        self.saved = sum(joint.bytes[at] for at in self._roots)
        handed = {joint.nodes[at].name: joint.roots[at] for at in saved if joint.roots[at] in self._roots}
        # Gradients that nobody else has are freed alike.
        freed = {joint.nodes[at].name: joint.roots[at] for at in joint.freed(others)}
        handed |= freed
        sizes = {root: joint.bytes[root] for root in handed.values()}
        kept = self._kept(others)
        self.others = others
        self.gradients = sum(joint.bytes[at] for at in {joint.roots[at] for at in joint.backward_outputs})
        # The layouts of convolutions are not those of the graph, here and in backward.
        has_layouts = joint.fuses and has_convolution(forward)
        is_compared = _may_compute_otherwise(joint, cut)
        forward_schedule = schedule_of(forward, joint) if has_layouts or joint.draw_order is None or is_compared else None
        joint.newest_vectors_of_forward = forward_schedule.vectors if forward_schedule and is_compared else {}
        if joint.draw_order is None:
            joint.draw_order = forward_schedule.draws if forward_schedule else []
        # The memory of a copy has a number that no node has.
        copies = forward_schedule.copies if forward_schedule else {}
        handed |= {name: -1 - number for number, name in enumerate(copies)}
        sizes |= {handed[name]: count for name, count in copies.items()}
        self.copies = sum(copies.values())
        self.saved += self.copies
        self.between = self.saved + self.held(Others())
        strides = forward_schedule.strides if forward_schedule else strides_laid_out(forward)
        handing = Handing(handed, sizes, kept, joint.donated(saved), strides)
        backward_schedule = schedule_of(backward, joint, handing) if joint.fuses else None
        if backward_schedule:
            joint.newest_loops, joint.newest_vectors = backward_schedule.loops, backward_schedule.vectors
            joint.newest_operands = backward_schedule.operands
        is_default = joint.layouts is None or cut.is_default(joint, joint.layouts.saved)
        if backward_schedule and known is None and not is_default and not joint.sizes.upper:
            known = backward_schedule.timeline.while_each_runs(handing)
        self.known = known
        self._in_backward = backward_schedule.peak(handing, known) if backward_schedule else _eager_peak(backward, handed, sizes, kept)
        self._forward = forward_schedule.peak() if forward_schedule else _eager_peak(forward, {}, {}, set())
        self._to_schedule: Callable[[], Schedule | None] | None = None
        if joint.fuses and not forward_schedule:
            self._forward = min(self._forward, _eager_peak(forward, {}, {}, set(), merges=True))
            self._to_schedule = _schedule_of_forward(joint, cut, forward)
        if joint.layouts is None and backward_schedule:  # the first plan is the compiler's own
            strides = strides_of(joint, saved) | (forward_schedule.strides if forward_schedule else {})
            in_memory = forward_schedule.in_memory if forward_schedule else None
            vectors = {name: set(forms) for name, forms in backward_schedule.vectors.items()}
            made, read = backward_schedule.made, backward_schedule.operands
            copied: InMemory = {name: each for name, each in made.items()
                                if name in read and each and len(each) == 4 and each != read[name]}
            joint.layouts = Layouts(saved, strides, in_memory, backward_schedule.loops, backward_schedule.operands, vectors,
                                    elements=backward_schedule.elements if joint.has_16_bits else {},
                                    kernels=backward_schedule.kernels, copied=copied)
            joint.forward_of_default = self._to_schedule or (lambda: forward_schedule)

    def hand_over(self, joint: Joint, cut: Cut) -> None:
        self._joint, self._cut, self._roots = joint, cut, joint.memories(cut.saved)
        self._beside: dict[tuple[frozenset[int], frozenset[int]], Halves] = {}

    def beside(self, others: Others) -> Halves:
        """The same halves, beside those others."""
        same, key = self, self._key(others)
        if key != self._key(self.others):
            if key not in self._beside:  # its schedules take long, and every step asks
                self._beside[key] = Halves(self._joint, self._cut, others, self.known)
            same = self._beside[key]
        result = copy.copy(same)
        result.others = others
        return result

    def _key(self, others: Others) -> tuple[frozenset[int], frozenset[int]]:
        """All that schedules depend on."""
        return frozenset(self._joint.freed(others)), frozenset(self._kept(others))

    def _kept(self, others: Others) -> set[int]:
        """What is handed over and an output as well, so that somebody has it until backward ends."""
        return self._roots & self._joint.outputs_in_backward(others)

    def held(self, others: Others) -> int:
        return sum(self._joint.bytes[at] for at in self._joint.outputs_in_backward(others) - self._roots)

    def are_handed_over(self) -> tuple[bool, ...]:
        """Of each output of forward, whether it is handed to backward as well."""
        return tuple(self._joint.roots[at] in self._roots for at in self._joint.forward_outputs)

    def between_with(self, sizes: dict[str, int], others: Others) -> int:
        """What is handed over and held in a call with these sizes."""
        roots = self._roots | self._joint.outputs_in_backward(others)
        return sum(self._joint.bytes_with(at, sizes) for at in roots) + self.copies

    @property
    def forward(self) -> int:
        """Its schedule is made where this counts, for it takes long. What is no more than other peaks need not be known better."""
        if self._to_schedule is not None and self._forward > max(self.between, self.backward):
            schedule, self._to_schedule = self._to_schedule(), None
            self._forward = schedule.peak() if schedule else self._forward
        return self._forward

    @property
    def late(self) -> int:
        """What is handed over and held while backward of later graphs runs."""
        roots = self._roots | self._joint.outputs_in_later_backward(self.others)
        return sum(self._joint.bytes[at] for at in roots) + self.copies

    @property
    def at_backward(self) -> int:
        """When backward begins."""
        return self.saved + self.held(self.others) + self._joint.bytes_beside_backward(self.others)

    @property
    def backward(self) -> int:
        return self._in_backward + self.at_backward - self.saved

    @property
    def peak(self) -> int:
        return max(self.early_peak, self.late_peak)

    @property
    def own_peak(self) -> int:
        """Without other graphs."""
        return max(self.forward, self.between, self.late, self.backward)

    @property
    def early_peak(self) -> int:
        """Until the first backward of the step begins."""
        return max(self.forward, self.between + self.others.between)

    @property
    def late_peak(self) -> int:
        return max(self.late + self.others.late, self.backward)


def _may_compute_otherwise(joint: Joint, cut: Cut) -> bool:
    """Whether forward may compute by other vector code than the compiler's own."""
    layouts = joint.layouts
    return bool(layouts and layouts.vectors and (layouts.in_memory is not None or joint.has_16_bits)
                and not cut.is_default(joint, layouts.saved))


def vectors_of_forward(joint: Joint) -> Vectors:
    """Under the compiler's own plan."""
    schedule = _forward_of_default(joint)
    return schedule.vectors if schedule else {}


def _forward_of_default(joint: Joint) -> Schedule | None:
    if joint.forward_of_default is None:
        assert joint.layouts is not None
        joint.forward_of_default = _schedule_of_forward(joint, Cut(joint.layouts.saved))
    schedule: Schedule | None = joint.forward_of_default()
    return schedule


def _schedule_of_forward(joint: Joint, cut: Cut, forward: fx.GraphModule | None = None) -> Callable[[], Schedule | None]:
    """Made when it is first asked for. `forward`: of that plan, if it was split off before."""
    return functools.cache(lambda: schedule_of(forward or _split(joint, cut)[0], joint))


def _split(joint: Joint, cut: Cut) -> tuple[fx.GraphModule, fx.GraphModule]:
    """As torch will split the graph for that cut."""
    nodes = [*joint.info.inputs, *(joint.nodes[at] for at in cut.saved)]
    values, sizes = [each for each in nodes if not is_size(each)], [each for each in nodes if is_size(each)]
    with without_warnings_of_nodes(), backward_extracted_once(), repeating(joint, cut):
        forward, backward = partitioners._extract_fwd_bwd_modules(
            joint.module, values, saved_sym_nodes=sizes, num_fwd_outputs=joint.outputs_of_forward,
            static_lifetime_input_nodes=joint.info.static_lifetime_input_nodes)
    with patch.object(fx.GraphModule, "recompile"):  # nobody calls these modules
        backward = partitioners.raise_getitems(partitioners.reordering_to_mimic_autograd_engine(backward))
        forward = partitioners.raise_getitems(forward)
    (output,) = forward.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = joint.visible  # as torch's compiler marks them
    if joint.layouts is not None and not cut.is_default(joint, joint.layouts.saved):
        if joint.layouts.in_memory is None and reads_out_of_order(forward, joint):
            schedule = _forward_of_default(joint)
            joint.layouts = dataclasses.replace(joint.layouts, in_memory=schedule.in_memory if schedule else {})
        if joint.has_16_bits and joint.layouts.vectors and joint.layouts.elements_of_forward is None:
            schedule = _forward_of_default(joint)
            joint.layouts = dataclasses.replace(joint.layouts, elements_of_forward=schedule.elements if schedule else {})
        compute_as_default(forward, backward, joint, cut.in_memory)
    return forward, backward


def _eager_peak(module: fx.GraphModule, handed: dict[str, int], sizes: dict[int, int], kept: set[int], *, merges: bool = False) -> int:
    """Operators one after another; a result is freed after the last operator that reads it or a view of it. `handed`: what
    forward hands over, by the name of the input, and on which memory, whose bytes are in `sizes`; that of `kept` is not
    freed. `merges`: an estimate for a compiler that merges loops, each into the only one that reads it, and runs those that
    only the caller reads as soon as it can."""
    nodes = list(module.graph.nodes)
    kinds = {node: kind_of(node) for node in nodes}
    if merges:
        nodes = _with_early_loops(nodes, kinds)
    on: dict[fx.Node, frozenset[fx.Node]] = {}  # the memory that is read with it
    last: dict[fx.Node, int] = {}
    first_on: dict[int, fx.Node] = {}
    for at, node in enumerate(nodes):
        inputs = node.all_input_nodes
        if inputs and (kinds[node] is Kind.VIEW or kinds[node] is Kind.ITEM and kinds[inputs[0]] is Kind.VIEW):
            on[node] = on[inputs[0]]
        elif merges and kinds[node] is Kind.LOOP and _is_merged(node, kinds):
            on[node] = frozenset().union(*(on[each] for each in inputs))
        else:
            on[node] = frozenset((node,))
        if node.op == "placeholder" and node.name in handed:
            on[node] = frozenset((first_on.setdefault(handed[node.name], node),))
        for each in (node, *inputs):
            last.update(dict.fromkeys(on[each], at))
    freed: dict[int, list[fx.Node]] = {}
    for node, at in last.items():
        freed.setdefault(at, []).append(node)
    live = peak = 0
    size: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        is_own = node in on[node]
        if node.op == "placeholder":
            size[node] = sizes.get(handed.get(node.name, -1), 0) if is_own else 0
        elif node.op == "call_function" and is_own:
            size[node] = bytes_of(node)
            several = [user for user in node.users if kinds[user] is Kind.ITEM] if not size[node] else []
            workspace = COSTS.call(node)[1] if kinds[node] not in (Kind.ITEM, Kind.INPUT) else 0
            peak = max(peak, live + size[node] + workspace + sum(bytes_of(each) for each in several))
        live += size.get(node, 0)
        peak = max(peak, live)
        if node.op != "placeholder":
            live -= sum(size.get(each, 0) for each in freed.get(at, ()) if handed.get(each.name) not in kept)
    return peak


def _with_early_loops(nodes: list[fx.Node], kinds: dict[fx.Node, Kind]) -> list[fx.Node]:
    slot: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        is_early = loops(kinds[node]) and node.all_input_nodes and all(user.op == "output" for user in node.users)
        slot[node] = max(slot[each] for each in node.all_input_nodes) if is_early else at
    return sorted(nodes, key=slot.__getitem__)


def _is_merged(node: fx.Node, kinds: dict[fx.Node, Kind]) -> bool:
    readers = list(node.users)
    while len(readers) == 1 and kinds[readers[0]] is Kind.VIEW:
        readers = list(readers[0].users)
    return len(readers) == 1 and loops(kinds[readers[0]])
