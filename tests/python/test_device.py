"""The package on a CUDA device: budgets, regions, access past operators and `reprise run`. Skipped where there is none."""

import contextlib
import os
import pathlib
import subprocess
import sys

# cuBLAS makes the same bits in every step only with a workspace of its own choice.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest  # noqa: E402
import torch  # noqa: E402
import torch.utils.checkpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import reprise  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
SCRIPTS = pathlib.Path(__file__).parent / "scripts"


@pytest.fixture(autouse=True)
def deterministic():
    # A warning alone would leave fused attention as it is, which adds gradients up in any order.
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.cuda.empty_cache()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attend = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (each.view(*x.shape[:2], 4, -1).transpose(1, 2) for each in self.attend(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(mixed, 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.LSTM(256, 256, 3, dropout=0.1, batch_first=True), nn.Linear(256, 1024)

    def forward(self, x):
        return F.gelu(self.out(self.layers(x)[0])).sin()


def convolutions():
    layers = []
    for at in range(6):
        layers += [nn.Conv2d(3 if at == 0 else 64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.Dropout(0.1)]
    return nn.Sequential(*layers)


NETWORKS = {"attention": (lambda: nn.Sequential(*[Block(512) for _ in range(5)]), (32, 512, 512)),
            "convolutions": (convolutions, (64, 3, 128, 128)),
            "recurrent": (Recurrent, (128, 256, 256))}


class Network:
    """A network on the device and its plain step."""

    def __init__(self, name, autocast):
        torch.manual_seed(3)
        make, shape = NETWORKS[name]
        self.model, self.x, self.autocast = make().cuda(), torch.randn(shape, device="cuda"), autocast
        self.buffers = [each.clone() for each in self.model.buffers()]
        self.gradients()
        with reprise.PeakScope("cuda") as scope:
            self.expected = self.gradients()
        self.live, self.activations = scope.live_at_start, scope.peak_above_start

    def gradients(self, call=None):
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers(), self.buffers):
                buffer.copy_(value)
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = (call or self.model)(self.x).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(self.model.parameters()))]

    def limit(self, share):
        return reprise.live_bytes("cuda") + int(self.activations * share)

    def is_same(self, found):
        return all(map(torch.equal, found, self.expected))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("share", [0.85, 0.6])
def test_steps_within_bytes_make_the_plain_bits(name, autocast, share):
    if name == "recurrent" and share < 0.8:
        pytest.skip("an LSTM is one operator, with most bytes of the step")
    network = Network(name, autocast)
    assert network.is_same(network.gradients())
    budget = reprise.MemoryBudget(network.limit(share), device="cuda")
    for step in range(4):
        torch.cuda.reset_peak_memory_stats()
        with budget.step():
            found = network.gradients()
        assert network.is_same(found), f"step {step}"
        del found
        assert torch.cuda.max_memory_allocated() <= budget.limit or step == 0
    assert budget.report().dropped + budget.report().followed > 0


def test_every_read_may_be_a_replay():
    network = Network("attention", autocast=True)
    network.model, network.x = network.model[:2], network.x[:2]
    network.expected = network.gradients()
    budget = reprise.MemoryBudget("8GiB", device="cuda", paranoid=True, verify=True, min_bytes=0)
    with budget.step():
        assert network.is_same(network.gradients())
    assert budget.report().replayed > 50


def losses_of_scaled_steps(budget):
    torch.manual_seed(3)
    model = nn.Sequential(*[Block(128) for _ in range(4)]).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), 1e-3), torch.amp.GradScaler("cuda", init_scale=2.0**30)
    x, found = torch.randn(8, 128, 128, device="cuda"), []
    for step in range(8):
        torch.manual_seed(step)
        with budget.step() if budget else contextlib.nullcontext():
            with torch.autocast("cuda", torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append(loss.item())
    return found, scaler.get_scale()


def test_scaled_gradients_in_half_precision_are_the_plain_ones():
    plain = losses_of_scaled_steps(None)
    budget = reprise.MemoryBudget(reprise.live_bytes("cuda") + (40 << 20), device="cuda")
    assert losses_of_scaled_steps(budget) == plain
    assert plain[1] < 2.0**30  # some steps were skipped


@pytest.mark.parametrize("reentrant", [False, True])
def test_regions_draw_the_same_numbers_as_torch_s_and_take_its_bytes(reentrant):
    network = Network("attention", autocast=True)
    x = network.x.requires_grad_()
    peaks = []
    for checkpoint in (torch.utils.checkpoint.checkpoint, reprise.checkpoint):
        def call(value, checkpoint=checkpoint):
            for block in network.model:
                value = checkpoint(block, value, use_reentrant=reentrant)
            return value
        with reprise.PeakScope("cuda") as scope:
            torch.manual_seed(1)
            with torch.autocast("cuda", torch.bfloat16):
                loss = call(x).square().mean()
            loss.backward()
        peaks.append(scope.peak_above_start)
        assert network.is_same([loss, *(each.grad for each in network.model.parameters())])
        network.model.zero_grad()
        x.grad = None
        del loss
    assert peaks[1] <= peaks[0] * 1.02


def test_selective_regions_keep_matrix_products():
    network = Network("attention", autocast=False)
    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def call(value):
        for block in network.model:
            value = reprise.checkpoint(block, value, use_reentrant=False, context_fn=lambda: (
                reprise.checkpoint.create_selective_checkpoint_contexts(kept)))
        return value
    assert network.is_same(network.gradients(call))


def test_access_past_operators_brings_bytes_back():
    with reprise.MemoryBudget("4GiB", device="cuda", paranoid=True, min_bytes=0).step():
        source = torch.arange(6000.0, device="cuda")
        value = source * 2 + 1
        value.sum()
        torch.ones(100, device="cuda").sin()
        expected = torch.arange(6000.0) * 2 + 1
        assert torch.equal(value.cpu(), expected)
        assert torch.equal(torch.from_dlpack(value).cpu(), expected)
        assert value.__cuda_array_interface__["data"][0] == value.data_ptr()
        assert value.tolist()[:3] == [1.0, 3.0, 5.0]
        assert torch.equal(value, expected.cuda())


def test_a_kernel_of_triton_reads_and_writes_bytes_that_are_there():
    pytest.importorskip("triton")
    from scripts.triton_kernel import add_one

    with reprise.MemoryBudget("4GiB", device="cuda", paranoid=True, min_bytes=0).step():
        value = torch.arange(6000.0, device="cuda") * 2
        value.sum()
        torch.ones(100, device="cuda").sin()
        add_one(value)
        value.sum()
        torch.ones(100, device="cuda").sin()
        assert torch.equal(value.cpu(), torch.arange(6000.0) * 2 + 1)


def test_a_second_stream_has_the_plain_bits():
    network = Network("attention", autocast=True)
    budget = reprise.MemoryBudget(network.limit(0.7), device="cuda")
    stream = torch.cuda.Stream()
    for _ in range(3):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), budget.step():
            found = network.gradients()
        torch.cuda.current_stream().wait_stream(stream)
        assert network.is_same(found)


def test_saved_tensors_are_parked_in_pinned_memory():
    network = Network("attention", autocast=True)
    store = reprise.host_store()

    def parked():
        with reprise.offload(store):
            torch.manual_seed(1)
            with torch.autocast("cuda", torch.bfloat16):
                loss = network.model(network.x).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(network.model.parameters()))]
    with reprise.PeakScope("cuda") as scope:
        assert network.is_same(parked())
    assert scope.peak_above_start < network.activations and store.statistics().count == 0
    budget = reprise.MemoryBudget(network.limit(0.6), device="cuda", store=store)
    for _ in range(3):
        with budget.step():
            assert network.is_same(network.gradients())


def test_a_graph_that_records_is_refused_and_the_next_step_works():
    network = Network("attention", autocast=False)
    budget = reprise.MemoryBudget(network.limit(0.7), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(reprise.Error, match="CUDA graphs"):
        with torch.cuda.graph(graph):
            with budget.step():
                network.model(network.x)
    torch.cuda.synchronize()
    with budget.step():
        assert network.is_same(network.gradients())


def test_a_profile_of_a_step_is_whole(capfd):
    network = Network("attention", autocast=False)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    budget = reprise.MemoryBudget(network.limit(0.7), device="cuda")
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as profile:
        for _ in range(2):
            with budget.step():
                assert network.is_same(network.gradients())
    assert any("addmm" in each.key and each.input_shapes for each in profile.key_averages(group_by_input_shape=True))
    assert "INTERNAL ASSERT" not in capfd.readouterr().err


def test_an_estimate_is_near_the_peak_of_a_step():
    network = Network("attention", autocast=False)
    found = reprise.estimate(nn.Sequential(*[Block(512) for _ in range(5)]).to("meta"),
                             torch.empty(network.x.shape, device="meta"), loss=lambda out: out.square().mean(), device="cuda")
    with reprise.PeakScope("cuda") as scope:
        network.model(network.x).square().mean().backward()
    assert 0.97 <= (found.peak - found.parameters) / scope.peak_above_start <= 1.03, (found, scope.peak_above_start)


def script(*arguments):
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("share", ["60%", "least"])
def test_a_script_on_the_device_is_not_changed(share):
    file = SCRIPTS / "on_device.py"
    alone, _ = script(file)
    found, told = script("-m", "reprise", "run", "--device", "cuda:0", "--budget", share, file)
    assert found == alone and len(alone.splitlines()) == 8
    assert "reprise: peak" in told, told
