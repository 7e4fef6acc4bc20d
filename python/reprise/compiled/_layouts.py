"""The layouts of what backward makes again.

Around convolutions inductor chooses layouts by what reads a value. A value that forward handed over without a budget may get
another one where backward makes it again, and sums over it are then added up in another order.
"""

from __future__ import annotations

from torch import fx

from ._joint import Joint
from ._kinds import Kind


def lay_out_as_default(backward: fx.GraphModule, joint: Joint) -> None:
    """Makes `backward` again what the compiler's own plan hands over in the layout that it has there, as far as it gets memory
    of its own or sums read it."""
    from torch._inductor import inductor_prims

    for node in list(backward.graph.nodes):
        strides, at = joint.layouts.get(node.name) if joint.layouts else None, joint.named.get(node.name)
        if node.op != "call_function" or strides is None or at is None or joint.kinds[at] not in (Kind.LOOP, Kind.VIEW):
            continue
        value = node.meta["val"]
        if not _is_read_by(Kind.CALL, joint, at) and (value.stride() == strides or not _is_read_by(Kind.REDUCTION, joint, at)):
            continue
        with backward.graph.inserting_after(node):
            laid_out = backward.graph.call_function(inductor_prims.force_stride_order, (node, strides))
        laid_out.meta = {**node.meta, "val": value.as_strided(value.shape, strides)}
        node.replace_all_uses_with(laid_out, delete_user_cb=lambda user, own=laid_out: user is not own)


def _is_read_by(kind: Kind, joint: Joint, at: int) -> bool:
    """Whether an operator of backward of that kind reads the value: itself, through views, or, a sum, through loops."""
    through = (Kind.VIEW,) if kind is Kind.CALL else (Kind.VIEW, Kind.ITEM, Kind.LOOP)
    seen, unseen = {at}, [at]
    while unseen:
        for user in joint.users[unseen.pop()]:
            if joint.kinds[user] is kind and not joint.in_forward[user]:
                return True
            if joint.kinds[user] in through and user not in seen:
                seen.add(user)
                unseen.append(user)
    return False
