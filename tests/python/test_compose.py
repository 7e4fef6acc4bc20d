"""A budget's step beside other parts of PyTorch that stand between a program and its operators. Every read is a replay,
and results are bitwise those of the plain step."""

import contextlib
import io
import os
import threading
import warnings

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import reprise


def model(width=16):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, width), nn.Tanh())


def x(rows=8, width=16, **options):
    return torch.linspace(-1, 1, rows * width, **options).view(rows, width)


def gradients(network, loss, **options):
    return torch.autograd.grad(loss, list(network.parameters()), **options)


def plainly():
    network = model()
    return gradients(network, network(x()).square().sum())


class Counts(TorchDispatchMode):
    """Sees the program's operators, and changes one."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.gelu.default else result


COUNTED = []


def under_a_dispatch_mode():
    with Counts() as mode:
        found = plainly()
    COUNTED.append([func for func in mode.seen])
    return found


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is nn.functional.gelu else result


def under_a_function_mode():
    with Doubles(), torch.device("cpu"):
        return plainly()


def with_vmap_and_grad():
    network = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    parameters = {name: x(*p.shape) if p.dim() > 1 else x(1, *p.shape)[0] for name, p in network.named_parameters()}

    def loss(parameters, row):
        return torch.func.functional_call(network, parameters, (row,)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x())
    second = torch.func.hessian(lambda v: (v.sin() * v).sum())(x()[0])
    return [*each.values(), second]


def with_operators_that_call_functions():
    """torch.cond and scan, as they are called and in a graph of operators; flex_attention has no backward on a CPU."""
    data = x(requires_grad=True)
    heads = x().view(1, 1, 8, 16)
    attended = flex_attention(heads, heads, heads).view(8, 16)

    def step(y):
        y = torch.cond((y * attended).sum() > 0, lambda y: y.sin().exp(), lambda y: y.cos().exp(), (y,))
        last, each = scan(lambda total, row: (total + row.tanh(), total * row), torch.zeros(16), y)
        return last.sum() + each.square().sum()

    return [attended, *(torch.autograd.grad(call(data), data)[0] for call in (step, torch.compile(step, backend="aot_eager")))]


def with_saved_tensors_on_the_host():
    with torch.autograd.graph.save_on_cpu():
        return plainly()


def with_saved_tensors_in_numpy():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        network = model()
        loss = network(x()).square().sum()
    return gradients(network, loss)


def with_saved_tensors_in_a_file():
    def pack(tensor):
        file = io.BytesIO()
        torch.save(tensor.detach(), file)
        return file.getvalue()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda data: torch.load(io.BytesIO(data))):
        return plainly()


def with_a_subclass():
    two = TwoTensor(x(), x() * 2).requires_grad_()
    y = (two.sin() @ two.cos().t()).exp().sum(0)
    (found,) = torch.autograd.grad(y.sum(), two)
    return [found.a, found.b]


def in_anomaly_mode():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            return plainly()


def in_autocast():
    network = model()
    with torch.autocast("cpu", torch.bfloat16):
        loss = network(x()).square().sum()
    return gradients(network, loss)


def twice_backward():
    network = model()
    data = x(requires_grad=True)
    first = torch.autograd.grad(network(data).square().sum(), data, create_graph=True)[0]
    return [first, *gradients(network, first.square().sum(), allow_unused=True, materialize_grads=True)]


def with_the_graph_retained():
    network = model()
    loss = network(x()).square().sum()
    return [*gradients(network, loss, retain_graph=True), *gradients(network, loss)]


def under_a_profiler():
    with torch.profiler.profile(profile_memory=True, record_shapes=True):
        handle = torch.ops.profiler._record_function_enter("step", None)  # a tensor that holds an object
        results = plainly()
        torch.ops.profiler._record_function_exit(handle)
        return results


def chosen(y):
    y[y < 0.1] = 2.0
    return y[y > 0.5] * y[y > 0.5].cos()


def in_torch_script():
    network = model()
    return gradients(network, torch.jit.script(chosen)(network(x()) * 2).sum())


STEPS = [plainly, under_a_dispatch_mode, under_a_function_mode, with_vmap_and_grad, with_operators_that_call_functions,
         with_saved_tensors_on_the_host, with_saved_tensors_in_numpy, with_saved_tensors_in_a_file, with_a_subclass,
         in_anomaly_mode, in_autocast, twice_backward, with_the_graph_retained, under_a_profiler, in_torch_script]


def paranoid(**options):
    return reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0, **options)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_results_are_bitwise_those_of_the_plain_step(step):
    torch.manual_seed(1)
    expected = step()
    budget = paranoid(verify=True)
    torch.manual_seed(1)
    with budget.step():
        found = step()
    assert budget.report().replayed > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_dispatch_mode_sees_no_replays():
    COUNTED.clear()
    under_a_dispatch_mode()
    budget = paranoid()
    with budget.step():
        under_a_dispatch_mode()
    assert budget.report().replayed > 0 and COUNTED[0] == COUNTED[1]


@pytest.fixture(scope="module")
def mesh():
    """One process, on Gloo."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def tensor_parallel(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model(64), mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})


def fully_sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    network = nn.Sequential(model(64), model(64))
    for block in network:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


@pytest.mark.parametrize("make", [tensor_parallel, fully_sharded], ids=lambda make: make.__name__)
def test_dtensors_train_as_in_the_plain_step(mesh, make):
    def train(network, budget=None):
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
        torch.manual_seed(1)
        for _ in range(3):
            with budget.step() if budget else contextlib.nullcontext():
                network(x(128, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach() for p in network.parameters()]

    expected = train(make(mesh))
    budget = paranoid(verify=True)
    found = train(make(mesh), budget)
    assert budget.report().replayed > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_anomaly_mode_names_the_forward_operator():
    data = torch.zeros(64, requires_grad=True)
    with paranoid().step(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():
            loss = (data * 0).sqrt().sum() * 0
            with pytest.raises(RuntimeError, match="returned nan values"):
                loss.backward()
    assert any("Traceback of forward call" in str(each.message) for each in said)


def test_threads_that_have_the_step_s_tensors_get_an_error_that_names_the_remedy():
    errors = []

    def run(f):
        try:
            f()
        except RuntimeError as error:
            errors.append(str(error))

    with paranoid().step():
        loss = model(64)(x(64, 64)).square().sum()
        thread = threading.Thread(target=run, args=(loss.backward,))
        thread.start()
        thread.join()
    assert "Operators inside the step, called on that thread, restore them" in errors[0]


def test_threads_have_steps_of_their_own():
    def train():
        data = x(64, 64, requires_grad=True)
        return torch.autograd.grad((data.sin() @ data.cos()).tanh().sum(), data)[0]

    def train_in_a_step(index):
        with budgets[index].step():
            found[index] = train()

    expected, found = train(), {}
    budgets = [paranoid() for _ in range(3)]
    threads = [threading.Thread(target=train_in_a_step, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[index], expected) and budgets[index].report().replayed > 0 for index in range(3))


def exit_code_of_child(f):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if f() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_that_is_forked_in_a_step_reads_what_was_dropped():
    budget = paranoid()
    with budget.step():
        y = x(64, 64).sin() * 2
        assert exit_code_of_child(lambda: torch.equal(y, x(64, 64).sin() * 2)) == 0
        assert torch.equal(y, x(64, 64).sin() * 2)


class Rows(torch.utils.data.Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.table[index].exp()


def test_workers_of_a_data_loader_that_are_forked_in_a_step_serve_it():
    network, budget = model(), paranoid()

    def train(budget=None):
        network.load_state_dict(start)
        torch.manual_seed(1)
        with budget.step() if budget else contextlib.nullcontext():
            table = x(8).sin()
            data = torch.utils.data.DataLoader(Rows(table), batch_size=4, num_workers=1, multiprocessing_context="fork")
            for batch in data:
                for p, g in zip(network.parameters(), gradients(network, network(batch).square().sum())):
                    p.data.sub_(g, alpha=0.1)
        return [p.detach().clone() for p in network.parameters()]

    start = {name: value.clone() for name, value in network.state_dict().items()}
    expected = train()
    assert all(torch.equal(a, b) for a, b in zip(train(budget), expected, strict=True))
    assert budget.report().replayed > 0


@pytest.mark.parametrize("selective", [False, True])
def test_what_torch_s_own_checkpoint_recomputes_and_keeps_is_dropped(network, selective):
    from torch.utils import checkpoint as theirs

    def keep_products(context, op, *args, **kwargs):
        return op is torch.ops.aten.addmm.default

    options = {"context_fn": lambda: theirs.create_selective_checkpoint_contexts(keep_products)} if selective else {}

    def gradients():
        torch.manual_seed(1)
        y = theirs.checkpoint(network.model, network.x, use_reentrant=False, **options)
        return torch.autograd.grad(y.square().sum(), list(network.model.parameters()))

    assert all(map(torch.equal, gradients(), network.expected))
    budget = reprise.MemoryBudget(network.limit(0.5))
    for _ in range(2):
        with budget.step():
            assert all(map(torch.equal, gradients(), network.expected))
    assert budget.report().peak <= budget.limit
