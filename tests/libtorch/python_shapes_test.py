"""Shape functions in a Python process: Python's own Meta kernels stay in place, and its compiler and fake tensors work
beside what was registered."""

import ctypes
import os
import pathlib
import unittest
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

lib = ctypes.CDLL(str(pathlib.Path(os.environ["REPRISE_LIBRARY_DIR"]) / "libpython_shapes.so"))
lib.shapes_statistics.restype = ctypes.c_long


def network(x):
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    y = torch.nn.functional.dropout(y, 0.5)
    q = y.view(2, 2, 4, 8)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q).sum()


class Shapes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.before = {name: cls.kernels(name) for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lib.shapes_register()
            lib.shapes_register()
        cls.caught = caught

    @staticmethod
    def kernels(name):
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")

    def test_registering_says_nothing(self):
        self.assertEqual([str(each.message) for each in self.caught], [])

    def test_kernels_of_python_stay_and_others_come(self):
        after = {name: self.kernels(name) for name in self.before}
        self.assertTrue(all(after[name] for name in self.before if self.before[name]))
        self.assertGreater(sum(after.values()), sum(self.before.values()))

    def test_meta_tensors_of_both_languages_have_sizes(self):
        self.assertEqual(lib.shapes_statistics(3, 5), 3)
        x = torch.empty(2, 8, 8, device="meta", requires_grad=True)
        network(x).backward()
        self.assertEqual(x.grad.shape, x.shape)

    def test_fake_tensors_work(self):
        with FakeTensorMode():
            x = torch.empty(2, 8, 8, requires_grad=True)
            network(x).backward()
            self.assertEqual(x.grad.device.type, "cpu")
            self.assertEqual(torch.randperm(5).shape, (5,))

    def test_the_compiler_works(self):
        x = torch.rand(2, 8, 8)
        norm = lambda t: torch.nn.functional.group_norm(torch.nn.functional.layer_norm(t, (8,)), 2).relu().std()
        torch.testing.assert_close(torch.compile(norm, backend="aot_eager")(x), norm(x))


if __name__ == "__main__":
    unittest.main()
