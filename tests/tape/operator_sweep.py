"""What operator_sweep_test.py runs: one operator of PyTorch's database with one sample of arguments, plain and in a
managed step in which every value is dropped after each operator, compared bit by bit. Every argument is made by an
operator of the step. Freed memory shows best where it is filled: ctest sets GLIBC_TUNABLES=glibc.malloc.perturb=165."""

import contextlib
import ctypes
import dataclasses
import itertools
import os
import pathlib
import sys

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_leaves, tree_map

# By hand: all samples, and all operators at larger sizes.
IS_LONG = "REPRISE_LONG_SWEEP" in os.environ
# Larger samples would take their time and show nothing else.
MOST_ELEMENTS = 3000
# The default of BudgetOptions.min_bytes, and what the database's sizes S, M and L are instead of 5, 10 and 20, so that
# most tensors have as much.
LARGE_FROM = 16 << 10
LARGE_SIZES = {"S": 17, "M": 18, "L": 20}
# Plain runs differ, by what lies in the memory that they are given.
UNSTEADY = {
    "linalg.lstsq": "its driver gelsy reads pivots that nobody has set",
    "linalg.lstsq.grad_oriented": "its driver gelsy reads pivots that nobody has set",
}
# No sample has a result that can be dropped.
KEPT = {
    "nn.functional.pad.circular": "fills a new tensor part by part",
    "sparse.mm.reduce": "multiplies by a sparse tensor",
    "sparse.sampled_addmm": "the result is sparse",
    "to_sparse": "the result is sparse",
}
DROPPED = "the bytes of this tensor were given up"


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("operators", "dropped", "replayed", "peak")]


def load():
    library = ctypes.CDLL(str(pathlib.Path(os.environ["REPRISE_LIBRARY_DIR"]) / "libpython_budget.so"))
    library.budget_open.argtypes = [ctypes.c_int64, ctypes.c_bool, ctypes.c_bool, ctypes.c_int64]
    library.budget_open.restype = ctypes.c_void_p
    library.budget_close.argtypes = [ctypes.c_void_p, ctypes.POINTER(Counts)]
    library.budget_close.restype = ctypes.c_bool
    library.budget_error.restype = ctypes.c_char_p
    return library


lib = load()


@contextlib.contextmanager
def paranoid_step(counts, smallest):
    """Everything that may go goes after each operator; what comes back is compared with a hash of what went."""
    step = lib.budget_open(1 << 40, True, True, smallest)
    if not step:
        raise RuntimeError(lib.budget_error().decode())
    try:
        yield
    finally:
        finished = lib.budget_close(step, ctypes.byref(counts))
    if not finished:
        raise RuntimeError(lib.budget_error().decode())


def flagged(leaf):
    """A conjugate or negative view."""
    return leaf.clone().conj() if leaf.is_complex() else torch._neg_view(leaf.clone())


def spread(leaf):
    """Every other element of a larger tensor, from the second on."""
    return torch.stack([leaf, leaf.detach()], -1).flip(-1)[..., 1]


@dataclasses.dataclass
class Case:
    """One operator, or its variant in place or with `out=`, with one sample of arguments."""

    name: str
    function: object
    sample: object
    backward: bool = True
    twice: bool = True
    # Its results are arguments, which may be roots.
    writes: bool = False
    # Bytes from which on a value is dropped.
    smallest: int = 1
    # How floating arguments lie on what the step's operators have made.
    form: object = None

    def argument(self, leaf):
        return self.form(leaf) if self.form and leaf.dtype.is_floating_point | leaf.is_complex() else leaf.clone()


@dataclasses.dataclass
class Outcome:
    """Of one run: tensors as (dtype, sizes, strides, bytes), by what they are."""

    tensors: list
    generator: bytes
    # Whether a result of the operator itself was dropped when the step ended.
    dropped_result: bool = False
    counts: Counts = None


def bits(tensor):
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
            return (tensor.layout, tuple(tensor.shape), bits(tensor.indices()), bits(tensor.values()))
        return (tensor.layout, tuple(tensor.shape), bits(tensor.to_dense()))
    if tensor._is_zerotensor():  # has no bytes
        tensor = tensor.clone()
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return (tensor.dtype, tuple(tensor.shape), tensor.stride(), ctypes.string_at(plain.data_ptr(), plain.nbytes))


def is_dropped(tensor):
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        return DROPPED in str(error)
    return False


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def differentiable(tensors):
    return [t for t in tensors if t.requires_grad and t.grad_fn is not None]


def cotangents_for(tensors, seed):
    """Fixed random ones, made again by an operator of the step, so that they may be dropped, too."""
    generator = torch.Generator().manual_seed(seed)
    roots = [torch.randn(t.shape, dtype=t.dtype, generator=generator).requires_grad_() for t in tensors]
    return roots, [root.clone() for root in roots]


def made_by_operators(case, leaves):
    """The arguments, as results of operators of the step themselves."""
    made = iter([case.argument(leaf) for leaf in leaves])
    sample = case.sample
    return tree_map(lambda a: next(made) if isinstance(a, torch.Tensor) else a,
                    (sample.input, sample.args, sample.kwargs))


def steps_of(case, leaves):
    """Forward, backward and double backward."""
    first, others, named = made_by_operators(case, leaves)
    results = case.function(first, *others, **named)
    every = {"result": tensors_of(results)}
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    outputs = differentiable(tensors_of(case.sample.output_process_fn_grad(results)))
    if not outputs or not wanted:
        return every
    roots, cotangents = cotangents_for(outputs, 1)
    slopes = torch.autograd.grad(outputs, wanted, cotangents, create_graph=case.twice, allow_unused=True)
    every["gradient"] = slopes
    bent = differentiable([slope for slope in slopes if slope is not None])
    if case.twice and bent:
        every["second gradient"] = torch.autograd.grad(bent, wanted + roots, cotangents_for(bent, 2)[1],
                                                       allow_unused=True)
    return every


def run(case, managed):
    sample = case.sample
    leaves = [leaf.detach().clone().requires_grad_(leaf.requires_grad and case.backward)
              for leaf in tensors_of((sample.input, sample.args, sample.kwargs))]
    counts = Counts()
    torch.manual_seed(7)
    with paranoid_step(counts, case.smallest) if managed else contextlib.nullcontext():
        every = steps_of(case, leaves)
        dropped = managed and any(is_dropped(result) for result in every["result"])
    state = bytes(torch.get_rng_state().numpy())
    found = [(f"{kind} {i}", bits(t)) for kind, tensors in every.items() for i, t in enumerate(tensors)]
    return Outcome(found, state, dropped, counts)


def differences(mine, plain):
    """Names of what is not the same in two outcomes."""
    names = [name for (name, a), (_, b) in zip(mine.tensors, plain.tensors) if a != b]
    if [name for name, _ in mine.tensors] != [name for name, _ in plain.tensors]:
        names.append("which tensors there are")
    if mine.generator != plain.generator:
        names.append("the generator's state")
    return names


def elements(sample):
    return sum(tensor.numel() for tensor in tensors_of((sample.input, sample.args, sample.kwargs)))


@contextlib.contextmanager
def large_samples():
    """The database makes its samples of these names, in each of its modules."""
    modules = [m for name, m in sys.modules.items() if name.startswith("torch.testing._internal") and hasattr(m, "S")]
    before = [(m, name, getattr(m, name)) for m in modules for name in LARGE_SIZES if hasattr(m, name)]
    try:
        for module, name, _ in before:
            setattr(module, name, LARGE_SIZES[name])
        yield
    finally:
        for module, name, size in before:
            setattr(module, name, size)


def large_cases_of(op, dtype, most):
    """With tensors on both sides of LARGE_FROM."""
    if op.full_name in UNSTEADY:
        return
    with large_samples():
        torch.manual_seed(3)
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), 60))
    largest = [max((t.numel() for t in tensors_of((s.input, s.args, s.kwargs))), default=0) for s in samples]
    samples = [s for s, size in zip(samples, largest) if LARGE_FROM <= size * dtype.itemsize <= 16 * LARGE_FROM]
    for number, sample in enumerate(evenly(samples, most)):
        yield Case(f"{op.full_name}[large {number}]", op, sample, twice=op.supports_gradgrad, smallest=LARGE_FROM)


def samples_of(op, dtype, most):
    """Up to `most` samples with something in them, evenly from the first ones, and one without."""
    torch.manual_seed(3)
    full, empty = [], []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        (full if elements(sample) else empty).append(sample)
        if len(full) == 60:
            break
    full = [sample for sample in full if elements(sample) <= MOST_ELEMENTS] or full
    return evenly(full, most) + empty[:1]


def with_out(op, sample):
    """Writes into tensors that operators of the step have made."""
    with torch.no_grad():
        expected = op(sample.input, *sample.args, **sample.kwargs)

    def function(*args, **kwargs):
        made = [torch.full_like(result, 3).clone() for result in tensors_of(expected)]
        op(*args, **kwargs, out=made[0] if isinstance(expected, torch.Tensor) else tuple(made))
        return made

    return function


def evenly(many, most):
    return [many[i * len(many) // most] for i in range(most)] if len(many) > most else many


def after_a_reader(function):
    """What has read the argument before it is written must still be what it was."""

    def both(first, *args, **kwargs):
        before = tree_map(torch.clone, first)
        return before, function(first, *args, **kwargs)

    return both


def out_itself(op):
    return after_a_reader(lambda first, *args, **kwargs: op(first, *args, **kwargs, out=first))


def writing_cases(op, sample, name):
    """In place and with `out=`, over what operators of the step have made, and over what it was given."""
    foreach = op.name.startswith("_foreach")
    if op.inplace_variant is not None and not sample.broadcasts_input:
        yield Case(name + " in place", op.inplace_variant, sample, twice=op.supports_gradgrad)
        yield Case(name + " in a root", after_a_reader(op.inplace_variant), sample, backward=False, form=torch.detach)
    if op.supports_out and not foreach:
        with contextlib.suppress(Exception):  # arguments for which there is no such variant
            yield Case(name + " out", with_out(op, sample), sample, backward=False)
        if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)):
            yield Case(name + " out itself", out_itself(op), sample, backward=False)
            yield Case(name + " out itself, a root", out_itself(op), sample, backward=False, form=torch.detach)


def cases_of(op, dtype, most, variants):
    if op.full_name in UNSTEADY:
        return
    for number, sample in enumerate(samples_of(op, dtype, most)):
        name = f"{op.full_name}[{number}]"
        yield Case(name, op, sample, twice=op.supports_gradgrad)
        if number < 2:
            form = (flagged, spread)[number]
            yield Case(f"{name} {form.__name__}", op, sample, twice=op.supports_gradgrad, form=form)
        if variants and number < 3:
            for case in writing_cases(op, sample, name):
                yield dataclasses.replace(case, writes=True)


@dataclasses.dataclass
class Tally:
    """What a sweep ran; names by what became of them."""

    operators: int = 0
    samples: int = 0
    twice: int = 0
    dropped: int = 0
    replayed: int = 0
    # The plain run throws.
    refused: list = dataclasses.field(default_factory=list)
    # Two plain runs differ.
    unsteady: list = dataclasses.field(default_factory=list)
    # None of the operator's own results could be dropped, although some have bytes.
    kept: list = dataclasses.field(default_factory=list)

    def __str__(self):
        return (f"{self.operators} operators, {self.samples} samples ({self.twice} with second derivatives), "
                f"{self.dropped} values dropped, {self.replayed} operators replayed; without a plain run to compare "
                f"with: {len(self.refused)} samples of {sorted({name.split('[')[0] for name in self.refused})}; two "
                f"plain runs differ: {self.unsteady}; results kept: {self.kept}")


def plain_run(case, tally):
    """None where the case has no plain run that is always the same."""
    try:
        plain = run(case, managed=False)
    except Exception:  # some operators say that they have second derivatives, and have none
        if not (case.twice and case.backward):
            tally.refused.append(case.name)
            return None
        case.twice = False
        return plain_run(case, tally)
    if differences(run(case, managed=False), plain):
        tally.unsteady.append(case.name)
        return None
    return plain


def is_unsteady(case, plain):
    """Whether plain runs differ if memory holds something else when they begin."""
    for filling in (float("nan"), 1.0, -3e38, 0.0):
        junk = [torch.full((1 << size,), filling) for size in range(4, 20) for _ in range(4)]
        del junk
        if differences(run(case, managed=False), plain):
            return True
    return False


def sweep(name, cases, tally):
    """Runs the cases of one operator; the texts of what is wrong."""
    wrong = []
    ran = 0
    has_bytes = dropped_result = False
    for case in cases:
        plain = plain_run(case, tally)
        if plain is None:
            continue
        try:
            mine = run(case, managed=True)
        except Exception as error:
            wrong.append(f"{case.name}: {str(error).splitlines()[0]}")
            continue
        if differences(mine, plain):
            if is_unsteady(case, plain):
                tally.unsteady.append(case.name)
                continue
            wrong.append(f"{case.name}: differs in {differences(mine, plain)}")
        ran += 1
        has_bytes = has_bytes or (elements(case.sample) > 0 and not case.writes)
        tally.twice += any(name.startswith("second") for name, _ in mine.tensors)
        tally.dropped += mine.counts.dropped
        tally.replayed += mine.counts.replayed
        dropped_result = dropped_result or mine.dropped_result
    tally.operators += ran > 0
    tally.samples += ran
    if has_bytes and not dropped_result:
        tally.kept.append(name)
    return wrong
