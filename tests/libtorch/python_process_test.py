"""The library as a guest in a Python process: PyTorch's compiler, profiler and memory figures beside it, and what must
hold for a whole process (the order of loading, a fork, a library that is loaded and not used), which is tried in
interpreters of its own."""

import os
import subprocess
import sys
import unittest

import torch

from python_hooks import hooks, load
from python_network import gradient, leaf, network

lib = load()


class Tools(unittest.TestCase):
    def setUp(self):
        self.x = leaf()

    def test_the_compiler_works_outside_of_any_scope(self):
        compiled = torch.compile(network, backend="aot_eager")
        with hooks(lib) as counts:
            pass
        torch.testing.assert_close(gradient(compiled, self.x), gradient(network, self.x))
        self.assertEqual(counts(), (0, 0))

    def test_a_compiled_function_works_inside_a_scope(self):
        compiled = torch.compile(lambda x: x.sin().cos(), backend="aot_eager")
        expected = gradient(lambda x: x.sin().cos(), self.x)
        with hooks(lib):
            torch.testing.assert_close(gradient(compiled, self.x), expected)

    def test_the_profiler_still_sees_memory_on_the_cpu(self):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            kept = torch.ones(1000, 1000)
        self.assertEqual(kept.nbytes, 4_000_000)
        allocated = sum(event.self_cpu_memory_usage for event in profile.key_averages())
        self.assertGreaterEqual(allocated, kept.nbytes)

    def test_a_scope_inside_the_profiler_and_around_it(self):
        expected = gradient(network, self.x)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile, hooks(lib) as counts:
            self.assertTrue(torch.equal(gradient(network, self.x), expected))
        self.assertGreater(counts()[0], 4)
        self.assertIn("aten::softmax", {event.key for event in profile.key_averages()})
        with hooks(lib) as counts, torch.profiler.profile(activities=activities):
            self.assertTrue(torch.equal(gradient(network, self.x), expected))
        self.assertGreater(counts()[0], 4)

    def test_the_meter_counts_tensors_of_python(self):
        before = lib.meter_live_bytes()
        scope = lib.meter_open()
        kept = torch.ones(1000, 1000)
        self.assertGreaterEqual(lib.meter_live_bytes() - before, kept.nbytes)
        torch.ones(2000, 1000)
        peak = lib.meter_close(scope)
        self.assertGreaterEqual(peak, 12_000_000)
        self.assertLess(peak, 12_100_000)
        del kept
        self.assertLess(lib.meter_live_bytes() - before, 100_000)


STEP = """
import hashlib
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 4))
def digest():
    torch.manual_seed(5)
    for p in model.parameters():
        torch.nn.init.normal_(p)
    optimizer = torch.optim.AdamW(model.parameters())
    state = hashlib.sha256()
    for step in range(3):
        loss = model(torch.randn(8, 16)).softmax(1).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            state.update(p.grad.numpy().tobytes())
        optimizer.step()
    return state.hexdigest()
def hooked_digest():
    with python_hooks.hooks(lib, copying=True) as counts:
        return digest(), counts()[0]
"""


def in_a_fresh_interpreter(code):
    """What the code prints; it must end without an error."""
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run([sys.executable, "-c", "import os\nimport python_hooks\n" + code], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


LOAD = "lib = python_hooks.load()\n"
TORCH = "import torch\n"


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = in_a_fresh_interpreter(TORCH + STEP + "print(digest())")

    def test_a_library_that_is_loaded_and_not_used_changes_nothing(self):
        for order in (TORCH + LOAD, LOAD + TORCH):
            with self.subTest(order=order):
                text = "print(digest(), lib.hooks_packs())"
                self.assertEqual(in_a_fresh_interpreter(order + STEP + text), f"{self.plain} 0")

    def test_the_order_of_loading_does_not_matter_to_hooks(self):
        for order in (TORCH + LOAD, LOAD + TORCH):
            with self.subTest(order=order):
                text = "print(*hooked_digest(), lib.hooks_alive(), digest())"
                digest, packs, alive, again = in_a_fresh_interpreter(order + STEP + text).split()
                self.assertEqual((digest, alive, again), (self.plain, "0", self.plain))
                self.assertGreater(int(packs), 0)

    def test_a_scope_used_before_torch_is_imported_does_not_spoil_a_later_one(self):
        early = "lib.hooks_close(lib.hooks_open(False)); early = lib.checkpointed_step_equals_plain(False, True)\n"
        text = "print(*hooked_digest(), early, lib.checkpointed_step_equals_plain(True, False))"
        digest, packs, before, after = in_a_fresh_interpreter(LOAD + early + TORCH + STEP + text).split()
        self.assertEqual((digest, before, after), (self.plain, "1", "1"))
        self.assertGreater(int(packs), 0)

    def test_python_exceptions_keep_their_type_when_the_library_was_loaded_first(self):
        code = """
lib.hooks_close(lib.hooks_open(False))
import torch
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad): raise KeyError("mine")
with python_hooks.hooks(lib):
    try:
        Fails.apply(torch.ones(3, requires_grad=True).exp()).sum().backward()
    except KeyError as error:
        print("KeyError", error.args[0])
"""
        self.assertEqual(in_a_fresh_interpreter(LOAD + code), "KeyError mine")

    def test_a_forked_child_can_run_backward_inside_a_scope(self):
        code = """
parent = hooked_digest()
child = os.fork()
if child == 0:
    os._exit(0 if hooked_digest() == parent else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hooked_digest() == parent)
"""
        self.assertEqual(in_a_fresh_interpreter(TORCH + LOAD + STEP + code), "0 True")

    def test_a_process_may_end_with_a_scope_open_and_a_graph_alive(self):
        code = "scope = lib.hooks_open(False)\ny = torch.ones(3, requires_grad=True).exp()\ny.sum().backward()\nprint('end')"
        self.assertEqual(in_a_fresh_interpreter(TORCH + LOAD + code), "end")


if __name__ == "__main__":
    unittest.main()
