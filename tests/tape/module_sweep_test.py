"""Every module of torch.nn, in training and in evaluation: results, buffers, gradients of weights and inputs, and second
gradients are bitwise the plain ones where every value is dropped after each operator."""

import unittest
import warnings

try:
    import torch
    from torch.testing._internal.common_methods_invocations import SampleInput
    from torch.testing._internal.common_modules import module_db

    from operator_sweep import IS_LONG, Case, Tally, evenly, sweep
except ImportError as error:
    module_db, MISSING = [], f"the module sweep needs PyTorch with its test database: {error}"
else:
    MISSING = ""


def case_of(info, number, given, training):
    torch.manual_seed(4)
    module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).train(training)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def function(state, *args, **kwargs):
        result = torch.func.functional_call(module, state, args, kwargs)
        return result, [state[name] for name, _ in module.named_buffers()]

    sample = SampleInput(state, args=given.forward_input.args, kwargs=given.forward_input.kwargs)
    return Case(f"{info.name}[{number}]{' training' if training else ''}", function, sample)


def cases_of(info, most):
    for training in (True, False):
        inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for number, given in enumerate(evenly([i for i in inputs if i.forward_input is not None], most)):
            yield case_of(info, number, given, training)


@unittest.skipIf(MISSING, MISSING)
class ModuleSweep(unittest.TestCase):
    maxDiff = None

    def test_modules_in_training_and_in_evaluation(self):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        tally = Tally()
        for info in module_db:
            with self.subTest(module=info.name):
                self.assertEqual(sweep(info.name, cases_of(info, most=100 if IS_LONG else 5), tally), [])
        print(tally)
        self.assertLessEqual(set(tally.kept), {"nn.CircularPad1d", "nn.CircularPad2d", "nn.CircularPad3d"})
        self.assertGreaterEqual(tally.operators, 100)


if __name__ == "__main__":
    unittest.main()
