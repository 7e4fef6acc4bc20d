"""Cases that step through a small transformer, plain and with every block as a region."""

import torch
from blocks import make_blocks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


def step_of(shape, call, input_requires_grad=False):
    """Forward, backward, and the gradients dropped, as zero_grad() does by default."""

    def make():
        blocks = make_blocks(shape["count"], shape["width"], shape["heads"], shape["dropout"])
        parameters = [parameter for block in blocks for parameter in block.parameters()]
        x = torch.randn(shape["batch"], shape["length"], shape["width"])
        x.requires_grad_(input_requires_grad)

        def step():
            y = x
            for block in blocks:
                y = call(block, y)
            y.sum().backward()
            for parameter in parameters:
                parameter.grad = None
            x.grad = None

        return step

    return make


def plain(block, x):
    return block(x)


def region(block, x):
    return checkpoint(block, x, use_reentrant=False)


def reentrant(block, x):
    return checkpoint(block, x, use_reentrant=True)


aten = torch.ops.aten
MATMULS = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]


def contexts():
    return create_selective_checkpoint_contexts(MATMULS)


def matmuls_kept(block, x):
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def cases_of(bench, shape):
    return {
        f"{bench}/plain": step_of(shape, plain),
        f"{bench}/non-reentrant": step_of(shape, region),
        f"{bench}/matmuls-kept": step_of(shape, matmuls_kept),
        f"{bench}/reentrant": step_of(shape, reentrant, input_requires_grad=True),
    }


FINE = {"count": 32, "width": 64, "heads": 4, "length": 16, "batch": 1, "dropout": 0.1}
COARSE = {"count": 8, "width": 256, "heads": 4, "length": 128, "batch": 8, "dropout": 0.1}

CASES = {
    **cases_of("every_block_fine", FINE),
    **cases_of("every_block_coarse", COARSE),
    **cases_of("selective_fine", FINE),
    **cases_of("selective_coarse", COARSE),
}
