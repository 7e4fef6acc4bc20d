"""A joint graph of forward and backward, as the partitioner gets it, with what a plan must know of each node."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import fx
from torch._functorch import config

from .._reprise import UsageError
from ._draws import may_draw
from ._kinds import Kind, is_repeatable, is_size, kind_of, name_of
from ._sizes import Sizes, bytes_of, mark, rounded
from ._torch import InputMutationAOTOutput, PlainAOTOutput, partitioners


# Of the bytes of all results of forward.
_SMALL = 0.001
_16_BITS = (torch.bfloat16, torch.float16)
# Operators that write to arguments, in the form of functions that return what has been written.
_FUNCTIONALIZED = frozenset(("auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional"))


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a step showed when the graph's backward began."""

    beside: int  # bytes beside the step's start, what the graph handed over, and its outputs: gradients that came in, say
    held: tuple[bool, ...]  # of each output of forward, whether somebody else still had it
    between: int = 0  # the most above the forward's end until then; for the last graph of the step, what others took
    kept: tuple[bool, ...] = ()  # as `held`, when the first backward of the step began
    freed: tuple[bool, ...] = ()  # of each gradient that comes in, whether nobody else has it; those are not `beside`


@dataclasses.dataclass(frozen=True)
class Others:
    """Bytes of a step's later graphs: what they need between a graph's forward and its backward, before the first backward of
    the step begins and after, and the gradients that are there while its backward runs. What was `measured` counts instead of
    an estimate, `gradients` included."""

    between: int = 0
    late: int = 0
    gradients: int = 0
    measured: Measured | None = None

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        measured = self.measured and {name: list(each) if isinstance(each, tuple) else each
                                      for name, each in vars(self.measured).items()}
        return {**vars(self), "measured": measured}

    @staticmethod
    def most(written: list[dict[str, Any]]) -> Others:
        """Of several processes."""
        found = [each["measured"] for each in written]
        measured = None
        if all(found):
            held, kept = (tuple(map(any, zip(*(one[name] for one in found)))) for name in ("held", "kept"))
            freed = tuple(map(all, zip(*(one["freed"] for one in found))))
            measured = Measured(max(one["beside"] for one in found), held, max(one["between"] for one in found), kept, freed)
        between, late, gradients = (max(each[name] for each in written) for name in ("between", "late", "gradients"))
        return Others(between, late, gradients, measured)


# Results that have memory of their own: strides, unless they vary or the memory is part of another.
InMemory = dict[str, tuple[int, ...] | None]


# How a loop that adds up goes through the memory of an operand: how far it is after some steps; after one, if all are alike.
Order = tuple[int, ...]
Loops = dict[str, dict[str, Order]]  # of backward, by the name of the sum, and by that of what it reads from memory
# By the name of a sum or a function, in what forms of vector code it is computed, and what the kernels with that form compute.
Vectors = dict[str, dict[str, set[str]]]


@dataclasses.dataclass(frozen=True)
class Layouts:
    """Of the compiler's own plan, by name."""

    saved: list[int]
    strides: dict[str, tuple[int, ...]]  # of what is handed over
    in_memory: InMemory | None  # in forward, as soon as a plan needs it
    loops: Loops
    operands: InMemory  # of these loops
    vectors: dict[str, set[str]]  # the forms in backward
    vectors_of_forward: Vectors | None = None  # as soon as a plan needs them
    elements: dict[str, int] = dataclasses.field(default_factory=dict)  # of the vectors that backward adds up, by the name of the sum
    elements_of_forward: dict[str, int] | None = None  # as soon as a plan needs them
    kernels: dict[str, int] = dataclasses.field(default_factory=dict)  # the first of backward's that computes it
    copied: InMemory = dataclasses.field(default_factory=dict)  # strides of what backward reads by copies in another layout


class Joint:
    """Nodes are known by their place in the graph."""

    def __init__(self, module: fx.GraphModule, info: Any, outputs_of_forward: int, *, fuses: bool, share: float = 1,
                 upper: dict[Any, int] | None = None) -> None:
        """`fuses`: whether the backend merges loops. `share`: torch's activation_memory_budget, of what may be handed over.
        `upper`: of sizes that vary, what the plan is for; the newest Joint of a graph counts."""
        self.module, self.info, self.outputs_of_forward, self.fuses, self.share = module, info, outputs_of_forward, fuses, share
        self.nodes = [node for node in module.graph.nodes if node.op != "output"]
        self.place = {node: at for at, node in enumerate(self.nodes)}
        self.named = {node.name: at for at, node in enumerate(self.nodes)}
        for node in self.nodes:
            if node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), fx.GraphModule):
                owner = next(iter(node.users), node)
                raise UsageError(f"reprise.compile: the operator '{owner.name}' runs a graph of its own, whose memory a plan does "
                                 "not know; compile the model without it, or leave memory_budget out")
        self.sizes = Sizes(self.nodes)
        if upper is not None:
            self.sizes.resize(upper)
        for node in self.nodes:
            mark(node, self.sizes)
        self.kinds = [kind_of(node) for node in self.nodes]
        self.inputs = [[self.place[each] for each in node.all_input_nodes] for node in self.nodes]
        self.users = [[self.place[each] for each in node.users if each.op != "output"] for node in self.nodes]
        self.bytes = [bytes_of(node) for node in self.nodes]
        forward, backward, described, _ = partitioners._extract_fwd_bwd_outputs(module, num_fwd_outputs=outputs_of_forward)
        self.forward_outputs = [self.place[each] for each in forward if isinstance(each, fx.Node) and not is_size(each)]
        self.backward_outputs = [self.place[each] for each in backward if isinstance(each, fx.Node)]
        self.is_tangent = [bool(partitioners._is_tangent(node)) for node in self.nodes]
        self.tangents = [at for at, each in enumerate(self.is_tangent) if each]
        self.after_tangents = [node in info.tangents_closure for node in self.nodes]
        # Forward can run whatever needs no gradient; what only backward reads, it runs where that is handed over.
        self.in_forward = [not each for each in self.after_tangents]
        self.roots = [self._root(at) for at in range(len(self.nodes))]
        # Places of the results that the caller gets, in the graph's layout.
        self.visible = [at for at, each in enumerate(described) if isinstance(each, PlainAOTOutput) and isinstance(forward[at], fx.Node)]
        # torch writes these inputs after forward, with what forward returns for them.
        replaced = {each.mutated_input for each in described if isinstance(each, InputMutationAOTOutput)}
        self._mark({at for at, node in enumerate(self.nodes) if node.op == "placeholder" and node.meta.get("desc") in replaced})
        self.backward_order = self.order_of_backward()
        # Of calls in the layouts that the compiler chose, for its own plan and for the newest: nanoseconds and workspace, by name.
        self.costs: dict[str, tuple[int, int]] = {}
        self.newest_costs: dict[str, tuple[int, int]] = {}
        draws = [node.name for at, node in enumerate(self.nodes) if self.in_forward[at] and may_draw(node)] if fuses else []
        self.draws = frozenset(draws if len(draws) > 1 else ())
        # How the compiler's own forward draws, by name; None until its schedule was seen.
        self.draw_order: list[str] | None = None if self.draws else []
        self.layouts: Layouts | None = None
        self.newest_loops: Loops = {}  # of the newest plan
        self.newest_operands: InMemory = {}
        self.newest_vectors: Vectors = {}
        self.newest_vectors_of_forward: Vectors = {}
        self.has_16_bits = any(getattr(node.meta.get("val"), "dtype", None) in _16_BITS for node in self.nodes)
        self.in_memory: set[int] = set()  # of every later plan, what gets memory in backward if it is computed there
        self.added: dict[int, int] = {}  # sums of parts of gradients, with the operators that wait for them; `in_memory` too
        self.forward_of_default: Callable[[], Any] | None = None  # gives its schedule, if it is known how
        self.schedules: dict[str, Any] = {}  # of its halves

    def _root(self, at: int) -> int:
        """Whose memory the node's result is in."""
        while self.inputs[at] and (self.kinds[at] is Kind.VIEW or
                                   self.kinds[at] is Kind.ITEM and self.kinds[self.inputs[at][0]] is Kind.VIEW):
            at = self.inputs[at][0]
        return at

    def _mark(self, replaced: set[int]) -> None:
        """What must be kept, what must be made again, and what forward alone can make."""
        policy = partitioners.CheckpointPolicy
        written = replaced | {self._root(self.inputs[at][0]) for at, node in enumerate(self.nodes) if self._writes(node)}
        # Inductor has what they return in the memory of the arguments, where the next one overwrites it.
        written |= {at for at in range(len(self.nodes)) if self.kinds[at] is Kind.ITEM and
                    name_of(self.nodes[self.inputs[at][0]]) in _FUNCTIONALIZED}
        self.must_keep: set[int] = set()
        self.must_repeat: set[int] = set()
        self.once: set[int] = set()
        self._sums: set[int] = set()  # they run once as well
        for at, node in enumerate(self.nodes):
            asked = node.meta.get("recompute")
            if asked is policy.MUST_SAVE:
                self.must_keep.add(at)
            elif asked in (policy.MUST_RECOMPUTE, policy.PREFER_RECOMPUTE):
                self.must_repeat.add(at)
            # An input that the step writes is another one when backward runs.
            reads_written = any(self._root(each) in written for each in self.inputs[at])
            if node.op != "call_function" or self.kinds[at] in (Kind.VIEW, Kind.INPUT):
                continue
            if self.fuses and self._is_sum(at):
                self._sums.add(at)
            if not is_repeatable(node) or reads_written:
                self.once.add(at)
        self.written = written

    def _is_sum(self, at: int) -> bool:
        """Whether the node's bits may be others in another loop: sums are added up in another order, and what is made of
        sums alone is computed by scalar functions in one loop and by vectors in another."""
        if self.kinds[at] is Kind.REDUCTION:
            return True
        if self.kinds[at] is not Kind.LOOP:
            return False
        tensors = [self.roots[each] for each in self.inputs[at] if not is_size(self.nodes[each])]
        return bool(tensors) and all(self.operator_of(each) in self._sums and each not in self.must_repeat for each in tensors) and \
            self.bytes[at] <= max(self.bytes[each] for each in tensors)

    def _writes(self, node: fx.Node) -> bool:
        target = node.target
        return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and bool(node.all_input_nodes)

    def is_once(self, at: int) -> bool:
        """Whether the value cannot be made again: one of several results as little as its operator."""
        operator = self.operator_of(at)
        return at not in self.must_repeat and (operator in self.once or operator in self._sums)

    def operator_of(self, at: int) -> int:
        while self.kinds[at] is Kind.ITEM:
            at = self.inputs[at][0]
        return at

    def items(self, at: int) -> tuple[int, ...]:
        """The results of an operator that has several."""
        return tuple(user for user in self.users[at] if self.kinds[user] is Kind.ITEM and self.roots[user] == user)

    def order_of_backward(self) -> list[int]:
        """What backward runs whatever is handed over, in its order: regions that must run again do so just before the first
        use."""
        needed = self.closure(self.backward_outputs, lambda at: False)
        order: list[int] = []
        seen: set[int] = set()

        def add(at: int) -> None:
            stack = [(at, False)]
            while stack:
                each, is_ready = stack.pop()
                if is_ready:
                    order.append(each)
                    continue
                if each in seen or not self.runs_in_backward(each):
                    continue
                seen.add(each)
                stack.append((each, True))
                stack += [(input, False) for input in reversed(self.inputs[each])]

        for at in sorted(needed):
            if self.after_tangents[at]:
                add(at)
        for at in self.backward_outputs:
            add(at)
        return order

    def runs_in_backward(self, at: int) -> bool:
        """Whatever is handed over."""
        return self.nodes[at].op == "call_function" and (not self.in_forward[at] or at in self.must_repeat)

    def memories(self, values: Iterable[int]) -> set[int]:
        """The memory that these values are in, without that of forward's inputs, which is live before it."""
        roots = {self.roots[at] for at in values}
        return {root for root in roots if self.nodes[root].op == "call_function" or self.is_tangent[root]}

    def closure(self, begin: Iterable[int], stops: Any) -> set[int]:
        seen: set[int] = set()
        open_nodes = list(begin)
        while open_nodes:
            at = open_nodes.pop()
            if at in seen:
                continue
            seen.add(at)
            if not stops(at):
                open_nodes += self.inputs[at]
        return seen

    def saved_for(self, kept: set[int], again: Collection[int] = ()) -> list[int]:
        """The nodes that forward hands to backward where `kept` are, in order: these, as far as they are read, and
        whatever backward cannot make again. `again`: operators whose results backward makes even if they are `kept`."""
        saved: set[int] = set()

        def stops(at: int) -> bool:
            if self.in_forward[at] and self.kinds[at] is Kind.INPUT and self.nodes[at].op == "call_function":
                is_whole = isinstance(self.nodes[at].meta["val"], torch.SymInt)
                saved.update([at] * is_whole)  # as torch hands sizes over
                return is_whole
            if not self.in_forward[at] or self.nodes[at].op != "call_function" or at in self.must_repeat:
                return False
            is_several = not isinstance(self.nodes[at].meta.get("val"), torch.Tensor)
            if not is_several and (at in kept or at in self.must_keep or self.is_once(at)):
                saved.add(at)
                return self.operator_of(at) not in again
            return False

        self._closure_of_backward(stops)
        return sorted(saved)

    def _closure_of_backward(self, stops: Any) -> set[int]:
        """Of all that backward runs or returns."""
        return self.closure([*self.backward_order, *(at for at in self.backward_outputs if self.in_forward[at])], stops)

    def saved_by_default(self, default: list[fx.Node]) -> list[int]:
        """The nodes that the compiler's own plan hands over, in order. What it makes again of sums, any plan may make again from
        now on."""
        kept = {self.place[node] for node in default if node in self.place}

        def stops(at: int) -> bool:
            return at in kept or self.nodes[at].op != "call_function" or self.kinds[at] is Kind.INPUT

        self._sums -= {at for at in self._closure_of_backward(stops) if not stops(at)}
        return self.saved_for(kept)

    def keep_small(self, default: list[int]) -> None:
        """The smallest values of the default are kept from now on. Without them it would save next to nothing, and loops that
        make them again would be merged into others, whose bits may then change."""
        left = _SMALL * self.bytes_of_forward
        for at in sorted((each for each in default if not self.is_once(each)), key=lambda each: self.bytes[self.roots[each]]):
            left -= self.bytes[self.roots[at]]
            if left < 0:
                break
            self.must_keep.add(at)

    def keep_layouts(self, default: set[int]) -> bool:
        """Inductor chooses other layouts in backward where a convolution runs there again, and for what is handed over. Some
        operators need much more memory in these. If there are such, convolutions run once from now on, and what these
        operators read is handed over or not as in the default. True where this call has changed that."""
        grown = [self.named[name] for name, (_, workspace) in self.newest_costs.items()
                 if name in self.named and workspace - self.costs[name][1] > sum(self.bytes[at] for at in self.inputs[self.named[name]])]
        convolutions = {at for at, node in enumerate(self.nodes) if node.target is torch.ops.aten.convolution.default}
        if not grown or convolutions <= self.once:
            return False
        self.once |= convolutions
        read = {each for at in grown for each in self.inputs[at] if self.in_forward[each] and self.is_operator(each)}
        self.must_keep |= read & default
        self.must_repeat |= {each for each in read - default if not self.is_once(each)}
        self.backward_order = self.order_of_backward()
        return True

    def outputs_in_backward(self, others: Others) -> set[int]:
        """The memory of the outputs that somebody has until backward ends; all of them as long as nothing is known."""
        return self._outputs_of(others.measured.held if others.measured else ())

    def outputs_in_later_backward(self, others: Others) -> set[int]:
        """The same until that of later graphs begins."""
        return self._outputs_of(others.measured.kept if others.measured else ())

    def with_nothing_held(self) -> Measured:
        """The least that a step can show: nobody has an output, and gradients that come in are freed after their last use."""
        nobody = (False,) * len(self.forward_outputs)
        return Measured(0, nobody, 0, nobody, (True,) * len(self.tangents))

    def _outputs_of(self, held: tuple[bool, ...]) -> set[int]:
        held = held or (True,) * len(self.forward_outputs)
        return self.memories(at for at, is_held in zip(self.forward_outputs, held) if is_held)

    def freed(self, others: Others) -> list[int]:
        """The gradients that come in and are freed after their last use, as what forward hands over."""
        return [at for at, is_freed in zip(self.tangents, others.measured.freed if others.measured else ()) if is_freed]

    def donated(self, saved: list[int]) -> frozenset[str]:
        """The names of what only the graph has when it is handed over: inductor writes into their memory after the last use."""
        if not config.donated_buffer:
            return frozenset()
        others = [at for at, node in enumerate(self.nodes) if node.op == "placeholder"]
        others += [*self.forward_outputs, *self.backward_outputs]
        held = {self.roots[at] for at in others}
        return frozenset(self.nodes[at].name for at in saved if self.roots[at] not in held)

    def bytes_beside_backward(self, others: Others) -> int:
        """Autograd holds the gradients that come in until backward has ended."""
        if others.measured:
            return others.measured.beside
        return others.gradients + sum(self.bytes[at] for at in self.tangents)

    def is_operator(self, at: int) -> bool:
        return self.nodes[at].op == "call_function" and self.nodes[at].target is not operator.getitem and \
            self.kinds[at] is not Kind.INPUT

    # -- Sizes that vary

    def at(self, upper: dict[Any, int]) -> Joint:
        """The same graph for other upper ends."""
        if upper == self.sizes.upper:
            return self
        return Joint(self.module, self.info, self.outputs_of_forward, fuses=self.fuses, share=self.share, upper=upper)

    def require_device(self, device: torch.device) -> None:
        """Raises UsageError where no tensor is on a device of that kind."""
        found = {each.meta["val"].device for each in self.nodes if isinstance(each.meta.get("val"), torch.Tensor)}
        if found and device.type not in {each.type for each in found}:
            raise UsageError(f"reprise.compile: the budget is of the bytes of {device}, and the graph's tensors are on "
                             f"{', '.join(sorted(map(str, found)))}; give device=")

    def bytes_with(self, at: int, sizes: dict[str, int]) -> int:
        """In a call with these sizes."""
        value = self.nodes[at].meta.get("val")
        if not self.sizes.upper or not isinstance(value, torch.Tensor):
            return self.bytes[at]
        return rounded(self.sizes.actual(value.numel(), sizes) * value.dtype.itemsize, value)

    def growth_of_inputs(self) -> int:
        """Bytes that the inputs take at the upper end above those of this trace."""
        if not self.sizes.upper:
            return 0
        inputs = [at for at, node in enumerate(self.nodes) if node.op == "placeholder" and not self.is_tangent[at]]
        return sum(max(0, self.bytes[at] - self.bytes_with(at, {})) for at in inputs)

    @property
    def bytes_of_forward(self) -> int:
        """Of all its results: they grow with the sizes."""
        return sum(each for at, each in enumerate(self.bytes) if self.in_forward[at] and self.nodes[at].op == "call_function")
