"""Every differentiable operator of PyTorch's database, with variants of its arguments, in place, with `out=` and over
views: results, gradients and second gradients are bitwise the plain ones where every value is dropped after each
operator.

REPRISE_LONG_SWEEP=1 runs all samples, and every operator at sizes on both sides of 16 KiB."""

import unittest
import warnings

try:
    import torch
    from torch.testing._internal import common_methods_invocations as database

    from operator_sweep import IS_LONG, KEPT, UNSTEADY, Tally, cases_of, large_cases_of, sweep
except ImportError as error:
    MISSING = f"the operator sweep needs PyTorch with its test database: {error}"
else:
    MISSING = ""

DATABASES = ("op_db", "foreach_unary_op_db", "foreach_binary_op_db", "foreach_pointwise_op_db", "foreach_reduce_op_db",
             "foreach_other_op_db")


@unittest.skipIf(MISSING, MISSING)
class OperatorSweep(unittest.TestCase):
    maxDiff = None

    def sweep_all(self, dtype, most, variants):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        tally = Tally()
        for op in [op for name in DATABASES for op in getattr(database, name)]:
            if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
                with self.subTest(operator=op.full_name):
                    self.assertEqual(sweep(op.full_name, cases_of(op, dtype, 60 if IS_LONG else most, variants), tally), [])
        print(f"{dtype}: {tally}; left out: {UNSTEADY}")
        self.assertLessEqual(set(tally.kept), KEPT.keys())
        return tally

    def test_real_operators_and_their_variants(self):
        tally = self.sweep_all(torch.float32, most=6, variants=True)
        self.assertGreaterEqual(tally.operators, 500)

    def test_complex_operators(self):
        tally = self.sweep_all(torch.complex64, most=3, variants=False)
        self.assertGreaterEqual(tally.operators, 200)

    def test_operators_of_reduced_precision(self):
        tally = self.sweep_all(torch.bfloat16, most=2, variants=False)
        self.assertGreaterEqual(tally.operators, 200)

    def test_real_operators_on_larger_tensors(self):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        tally = Tally()
        operators = [op for name in DATABASES for op in getattr(database, name)
                     if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")]
        for op in operators if IS_LONG else operators[::5]:
            with self.subTest(operator=op.full_name):
                cases = large_cases_of(op, torch.float32, most=4 if IS_LONG else 1)
                self.assertEqual(sweep(op.full_name, cases, tally), [])
        print(f"larger tensors: {tally}")
        self.assertGreaterEqual(tally.operators, 200 if IS_LONG else 30)


if __name__ == "__main__":
    unittest.main()
