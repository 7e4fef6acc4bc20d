"""Operator interception in a Python process: Python's operators are seen, its dispatch modes, compiler and own
selective checkpointing work beside it."""

import contextlib
import ctypes
import os
import pathlib
import subprocess
import sys
import unittest

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


def load():
    library = ctypes.CDLL(str(pathlib.Path(os.environ["REPRISE_LIBRARY_DIR"]) / "libpython_interceptor.so"))
    library.interceptor_open.restype = ctypes.c_void_p
    library.interceptor_names.argtypes = [ctypes.c_void_p]
    library.interceptor_names.restype = ctypes.c_char_p
    library.interceptor_close.argtypes = [ctypes.c_void_p]
    library.selective_step_is_exact.restype = ctypes.c_bool
    return library


lib = load()
VARIANT = os.environ.get("REPRISE_INTERCEPTOR", "fake")


@contextlib.contextmanager
def seen():
    """Yields a function that returns the names of the operators seen so far."""
    scope = lib.interceptor_open()
    try:
        yield lambda: lib.interceptor_names(scope).decode().split()
    finally:
        lib.interceptor_close(scope)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Interception(unittest.TestCase):
    def test_operators_of_python_are_seen_forward_and_backward(self):
        x = torch.randn(3, 4, requires_grad=True)
        w = torch.randn(5, 4)
        with seen() as names:
            torch.nn.functional.linear(x, w).sin().sum().backward()
            found = names()
        self.assertEqual(found[:4], ["t", "mm", "sin", "sum"])
        self.assertIn("cos", found)

    def test_a_dispatch_mode_sees_the_same_operators(self):
        x = torch.ones(2, 2)
        with seen() as names, Counting() as mode:
            x.mm(x).sin()
            found = names()
        self.assertEqual(mode.names, ["mm", "sin"])
        if VARIANT == "fake":
            self.assertEqual(found, ["mm", "sin"])

    def test_a_selective_step_of_ours_is_exact(self):
        self.assertTrue(lib.selective_step_is_exact())
        with Counting() as mode:
            self.assertTrue(lib.selective_step_is_exact())
        self.assertIn("mm", mode.names)

    def test_selective_checkpointing_of_python_works_inside(self):
        x = torch.randn(4, 4, requires_grad=True)
        expected = torch.autograd.grad(x.mm(x).sin().sum(), x)[0]

        def contexts():
            return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

        with seen():
            y = checkpoint(lambda t: t.mm(t).sin(), x, use_reentrant=False, context_fn=contexts)
            self.assertTrue(torch.equal(torch.autograd.grad(y.sum(), x)[0], expected))

    def test_the_compiler_works_beside_it(self):
        x = torch.randn(4, 4)
        lib.selective_step_is_exact()
        compiled = torch.compile(lambda t: t.sin().cos() + t, backend="aot_eager")
        torch.testing.assert_close(compiled(x), x.sin().cos() + x)

    def test_errors_of_operators_leave_nothing_switched(self):
        with seen() as names:
            with self.assertRaises(RuntimeError):
                torch.ones(2, 3).mm(torch.ones(2, 3))
        with seen() as names:
            torch.ones(1).sin()
            self.assertEqual(names(), ["ones", "sin"])


@unittest.skipIf("REPRISE_INTERCEPTOR" in os.environ, "this is the process that the test below starts")
class OtherVariant(unittest.TestCase):
    def test_everything_holds_for_the_generic_variant(self):
        result = subprocess.run([sys.executable, __file__], env={**os.environ, "REPRISE_INTERCEPTOR": "generic"},
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_an_unknown_variant_is_refused(self):
        program = "import sys; sys.path.insert(0, %r); import python_interceptor_test as t; t.lib.interceptor_open()"
        result = subprocess.run([sys.executable, "-c", program % str(pathlib.Path(__file__).parent)],
                                env={**os.environ, "REPRISE_INTERCEPTOR": "other"},
                                capture_output=True, text=True, check=False)
        self.assertIn("REPRISE_INTERCEPTOR is 'other'; it must be 'fake' or 'generic'", result.stderr)


if __name__ == "__main__":
    unittest.main()
