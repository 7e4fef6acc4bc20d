"""What the tests of the Python package share: a small network, its plain step, and peaks."""

import gc
import os
from unittest import mock

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "libasan" in os.environ.get("LD_PRELOAD", ""):
    # Processes that tests start, such as assemblers, end without freeing all.
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0"
os.environ.setdefault("REPRISE_PLAN_CACHE_DIR", "")  # plans of an earlier run would hide what planning does

import torch  # noqa: E402

import reprise  # noqa: E402

torch.set_num_threads(1)

# For tests that compile for long, so that they run only where they are asked for.
long = pytest.mark.skipif(not os.environ.get("REPRISE_LONG_TESTS"), reason="compiles for long; REPRISE_LONG_TESTS=1 runs it")


def pytest_runtest_setup(item):
    """Planning calls the collector often. It does not look again through what is imported and cached before a test."""
    if "compiled" in item.path.name:
        gc.collect()
        gc.freeze()


class Network:
    """Twelve layers with dropout, and the plain step that budgets are compared with."""

    def __init__(self, layers=12, width=256, rows=512):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(*[
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(layers)])
        self.x = torch.randn(rows, width)
        self.gradients()  # the first call makes what stays
        with reprise.PeakScope() as scope:
            self.loss, self.expected = self.gradients()
        self.live, self.activations = scope.live_at_start, scope.peak_above_start

    def gradients(self):
        torch.manual_seed(1)
        loss = self.model(self.x).square().sum()
        found = torch.autograd.grad(loss, list(self.model.parameters()))
        return loss.item(), found

    def limit(self, share):
        """Bytes of a budget that leaves that share of the activations."""
        return reprise.live_bytes() + int(self.activations * share)

    def is_same(self, found):
        loss, gradients = found
        return loss == self.loss and all(map(torch.equal, gradients, self.expected))


@pytest.fixture(scope="module")
def network():
    return Network()


def torchrun(folder, *arguments):
    """Runs torchrun with two processes in this one; what each process has written on standard output and error."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    options = ["--standalone", "--local-addr=localhost", "--nproc-per-node=2", "--redirects=3", f"--log-dir={folder}"]
    failed = None
    try:
        with mock.patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo"):  # whatever this machine's name leads to
            main([*options, *map(str, arguments)])
    except ChildFailedError as error:
        failed = error
    written = [[file.read_text() for file in sorted(folder.glob(f"**/{name}.log"))] for name in ("stdout", "stderr")]
    if failed:
        pytest.fail("\n".join([*written[1], str(failed)]), pytrace=False)
    return list(zip(*written))
