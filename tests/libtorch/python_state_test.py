"""Regions that write to state, in a Python process: operators that Python defines, and its modes, compiler and profiler
around and inside regions."""

import ctypes
import unittest

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from python_hooks import load

lib = load()


def after_region(name, reentrant=False):
    """What is left of a state of two zeros, and how often the region's function ran."""
    runs = ctypes.c_long()
    left = lib.state_after_region_with(name.encode(), reentrant, ctypes.byref(runs))
    return left, runs.value


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@torch.library.custom_op("reprise_python::count", mutates_args={"state"})
def count(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.add_(1)
    return x.clone()


@torch.compile(backend="aot_eager")
def compiled(state, x):
    state.add_(1)
    return x * 2


class State(unittest.TestCase):
    def expect_counted_once(self, name):
        for reentrant in (False, True):
            with self.subTest(name=name, reentrant=reentrant):
                self.assertEqual(after_region(name, reentrant), (2.0, 2))

    def test_what_an_operator_of_python_writes_is_undone(self):
        self.expect_counted_once("reprise_python::count")

    def test_an_operator_that_python_defines_later_is_seen_too(self):
        after_region("reprise_python::count")
        library = torch.library.Library("reprise_python_late", "DEF")
        library.define("count(Tensor(a!) state, Tensor x) -> Tensor")

        def late(state, x):
            state.add_(1)
            return x * 1

        library.impl("count", late, "CompositeImplicitAutograd")
        self.expect_counted_once("reprise_python_late::count")

    def test_modes_of_python_work_around_regions(self):
        mode = Counting()
        with mode:
            self.expect_counted_once("reprise_python::count")
        self.assertIn("aten.sin.default", mode.names)

    def test_modes_of_python_work_inside_regions(self):
        names = []
        library = torch.library.Library("reprise_python_mode", "DEF")
        library.define("count(Tensor(a!) state, Tensor x) -> Tensor")

        def inside(state, x):
            with Counting() as mode:
                state.add_(1)
                result = x * 1
            names.extend(mode.names)
            return result

        library.impl("count", inside, "CompositeImplicitAutograd")
        self.expect_counted_once("reprise_python_mode::count")
        self.assertIn("aten.add_.Tensor", names)

    def test_a_compiled_function_runs_inside_a_region(self):
        library = torch.library.Library("reprise_python_compiled", "DEF")
        library.define("count(Tensor(a!) state, Tensor x) -> Tensor")
        library.impl("count", lambda state, x: compiled(state, x), "CompositeImplicitAutograd")
        self.expect_counted_once("reprise_python_compiled::count")
        state, x = torch.zeros(2), torch.ones(2)
        torch.testing.assert_close(compiled(state, x), x * 2)

    def test_vmap_works_inside_a_region(self):
        library = torch.library.Library("reprise_python_vmap", "DEF")
        library.define("count(Tensor(a!) state, Tensor x) -> Tensor")

        def mapped(state, x):
            torch.vmap(lambda row: row.add_(1))(state)
            return torch.vmap(lambda row: row * 2)(x)

        library.impl("count", mapped, "CompositeImplicitAutograd")
        self.expect_counted_once("reprise_python_vmap::count")

    def test_the_profiler_works_around_regions(self):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self.expect_counted_once("reprise_python::count")
        self.assertIn("aten::sin", {event.key for event in profile.key_averages()})


if __name__ == "__main__":
    unittest.main()
