"""C++ hook scopes and regions in a Python process, beside PyTorch's own hooks, checkpoint, anomaly mode, exceptions
and threads: the order of opening decides which hooks are called, and gradients are right whatever is inside what."""

import contextlib
import threading
import unittest

import torch
from torch.utils.checkpoint import checkpoint

from python_hooks import PythonHooks, hooks, load, no_hooks
from python_network import gradient, leaf, network

lib = load()


class Hooks(unittest.TestCase):
    def setUp(self):
        self.x = leaf()
        self.expected = gradient(network, self.x)

    def tearDown(self):
        self.assertEqual(lib.hooks_alive(), 0)

    def assert_right(self, actual):
        self.assertTrue(torch.equal(actual, self.expected))

    def test_a_scope_packs_what_python_code_saves(self):
        with hooks(lib) as counts:
            y = network(self.x).sum()
            packs, _ = counts()
            self.assertGreater(packs, 4)
        self.assert_right(torch.autograd.grad(y, self.x)[0])
        self.assertEqual(counts(), (packs, packs))

    def test_nothing_is_packed_outside_of_a_scope(self):
        with hooks(lib) as counts:
            pass
        self.assert_right(gradient(network, self.x))
        self.assertEqual(counts(), (0, 0))

    def test_pythons_hooks_inside_ours_win(self):
        python = PythonHooks()
        with hooks(lib) as counts, python.scope():
            self.assert_right(gradient(network, self.x))
        self.assertEqual(counts(), (0, 0))
        self.assertGreater(python.packs, 4)
        self.assertEqual(python.packs, python.unpacks)

    def test_our_hooks_inside_pythons_win(self):
        python = PythonHooks()
        with python.scope(), hooks(lib) as counts:
            self.assert_right(gradient(network, self.x))
        self.assertEqual((python.packs, python.unpacks), (0, 0))
        self.assertGreater(counts()[0], 4)

    def test_the_order_of_opening_decides_to_any_depth(self):
        python, inner = PythonHooks(), PythonHooks()
        with python.scope(), hooks(lib) as counts:
            y = self.x.sin()
            with inner.scope():
                y = y.sin()
                with no_hooks(lib):
                    y = y.sin()
                with hooks(lib) as innermost:
                    y = y.sin()
                    self.assertEqual(innermost(), (1, 0))
                y = y.sin()
            y = y.sin()
        self.assertEqual((python.packs, inner.packs), (0, 2 + 0))
        self.assertEqual(counts()[0], 3)  # one on either side of `inner`, one of the innermost
        torch.autograd.grad(y.sum(), self.x)

    def test_no_saved_tensor_hooks_leaves_pythons_inner_hooks_alone(self):
        python = PythonHooks()
        with hooks(lib) as counts, no_hooks(lib), python.scope():
            self.x.sin()
        self.assertEqual(counts(), (0, 0))
        self.assertEqual(python.packs, 1)

    def test_double_backward(self):
        def both_orders():
            first, = torch.autograd.grad(network(self.x).pow(2).sum(), self.x, create_graph=True)
            return first.detach(), torch.autograd.grad(first.pow(2).sum(), self.x)[0]

        expected = both_orders()
        with hooks(lib) as counts:
            actual = both_orders()
        self.assertGreater(counts()[0], 0)
        for a, b in zip(actual, expected):
            self.assertTrue(torch.equal(a, b))

    def test_retained_graphs(self):
        with hooks(lib):
            y = network(self.x).sum()
        for retain in (True, True, False):
            self.assert_right(torch.autograd.grad(y, self.x, retain_graph=retain)[0])

    def test_threads_have_scopes_of_their_own(self):
        results = {}

        def run(name, own_scope):
            packs = PythonHooks()
            with packs.scope() if own_scope else contextlib.nullcontext():
                results[name] = gradient(network, self.x), packs.packs

        with hooks(lib) as counts:
            threads = [threading.Thread(target=run, args=(i, i % 2 == 0)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(counts(), (0, 0))
        for name, (actual, packs) in results.items():
            self.assert_right(actual)
            self.assertEqual(packs > 0, name % 2 == 0)

    def test_custom_functions_of_python_are_packed_and_may_save_in_backward(self):
        class Saves(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return network(x)

            @staticmethod
            def backward(ctx, grad):
                x, = ctx.saved_tensors
                with torch.enable_grad():
                    x = x.detach().requires_grad_()
                    return torch.autograd.grad(network(x), x, grad)[0]

        y = Saves.apply(self.x).sum()
        with hooks(lib) as counts:
            self.assert_right(torch.autograd.grad(y, self.x, retain_graph=True)[0])
            self.assertGreater(counts()[0], 4)
        with hooks(lib) as counts:
            y = Saves.apply(self.x)
        self.assertEqual(counts()[0], 1)

    def test_deeply_nested_backward_calls_run_on_other_threads_inside_the_scope(self):
        threads = set()

        class Nest(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, depth):
                ctx.depth = depth
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                threads.add(threading.get_ident())
                if ctx.depth == 0:
                    return grad, None
                with torch.enable_grad():
                    x = grad.detach().requires_grad_()
                    return torch.autograd.grad(Nest.apply(x.sin(), ctx.depth - 1).sum(), x)[0], None

        y = Nest.apply(self.x, 70).sum()
        with hooks(lib) as counts:
            y.backward()
        self.assertEqual(counts(), (70, 70))
        self.assertGreaterEqual(len(threads), 2)

    def test_functorch_transforms_work_inside_a_scope(self):
        with hooks(lib):
            transformed = torch.func.grad(lambda t: network(t).sum())(self.x.detach())
        torch.testing.assert_close(transformed, self.expected)


class Errors(unittest.TestCase):
    def setUp(self):
        self.x = leaf()

    def tearDown(self):
        self.assertEqual(lib.hooks_alive(), 0)

    def assert_the_next_step_works(self):
        self.assertTrue(torch.is_grad_enabled())
        expected = gradient(network, self.x)
        with hooks(lib) as counts:
            self.assertTrue(torch.equal(gradient(network, self.x), expected))
        self.assertGreater(counts()[0], 4)

    def test_exceptions_of_python_keep_their_type_through_backward(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise KeyError("mine")

        with hooks(lib), self.assertRaisesRegex(KeyError, "mine"):
            Fails.apply(self.x.exp()).sum().backward()
        self.assert_the_next_step_works()

    def test_an_exception_of_a_cpp_hook_reaches_python_and_backward_can_be_tried_again(self):
        with hooks(lib):
            y = network(self.x).sum()
        lib.hooks_refuse(True)
        try:
            with self.assertRaisesRegex(Exception, "unpack was told to refuse"):
                torch.autograd.grad(y, self.x, retain_graph=True)
        finally:
            lib.hooks_refuse(False)
        self.assertTrue(torch.equal(torch.autograd.grad(y, self.x)[0], gradient(network, self.x)))
        del y
        self.assert_the_next_step_works()

    def test_changes_in_place_stay_errors(self):
        with hooks(lib):
            h = self.x.abs()
            y = h.sin().sum()
        with torch.no_grad():
            h.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.backward()
        del y, h
        self.assert_the_next_step_works()

    def test_changes_in_place_do_not_reach_copies(self):
        expected = self.x.detach().abs().cos() * self.x.detach().sign()
        with hooks(lib, copying=True):
            h = self.x.abs()
            y = h.sin().sum()
        with torch.no_grad():
            h.mul_(2)
        self.assertTrue(torch.equal(torch.autograd.grad(y, self.x)[0], expected))

    def test_anomaly_mode_still_shows_the_forward_call(self):
        with hooks(lib), self.assertWarnsRegex(UserWarning, "Error detected in SqrtBackward0.*(?s:.)*the_culprit"):
            with self.assertRaisesRegex(RuntimeError, "nan values"), torch.autograd.detect_anomaly():
                def the_culprit(x):
                    return (x * 0).sqrt() * 0

                the_culprit(self.x).sum().backward()
        self.assert_the_next_step_works()


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.x = leaf()
        self.expected = gradient(network, self.x)

    def test_pytorchs_checkpoint_inside_a_scope(self):
        for reentrant in (False, True):
            with self.subTest(use_reentrant=reentrant), hooks(lib) as counts:
                checkpoint(network, self.x, use_reentrant=reentrant).sum().backward()
                self.assertTrue(torch.equal(self.x.grad, self.expected))
                self.x.grad = None
                if not reentrant:
                    # Python's checkpoint keeps tensors by hooks of its own; the scope sees only its input.
                    self.assertLessEqual(counts()[0], 1)

    def test_a_scope_inside_pytorchs_checkpoint(self):
        def with_scope(x):
            with hooks(lib):
                return network(x)

        for reentrant in (False, True):
            with self.subTest(use_reentrant=reentrant):
                checkpoint(with_scope, self.x, use_reentrant=reentrant).sum().backward()
                self.assertTrue(torch.equal(self.x.grad, self.expected))
                self.x.grad = None

    def test_our_regions_are_exact_in_a_python_process(self):
        for reentrant in (False, True):
            for nested in (False, True):
                with self.subTest(reentrant=reentrant, nested=nested):
                    self.assertEqual(lib.checkpointed_step_equals_plain(reentrant, nested), 1)

    def test_our_regions_are_exact_inside_pythons_hooks(self):
        for reentrant in (False, True):
            python = PythonHooks()
            with self.subTest(reentrant=reentrant), python.scope():
                self.assertEqual(lib.checkpointed_step_equals_plain(reentrant, False), 1)
            self.assertGreater(python.packs, 0)  # the plain step's tensors and the regions' arguments

    def test_our_regions_are_exact_inside_and_around_other_scopes(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant), hooks(lib) as counts:
                self.assertEqual(lib.checkpointed_step_equals_plain(reentrant, True), 1)
                self.assertGreater(counts()[0], 0)


if __name__ == "__main__":
    unittest.main()
