"""What tells one graph from another: its operators, their arguments, and the form of every value."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import fx
from torch._library.fake_class_registry import FakeScriptObject

from ._joint import Joint


def key_of(joint: Joint, default: list[fx.Node]) -> str:
    """A hash, equal for graphs whose nodes are the same in the same order. `default`: what torch would hand to backward."""
    digest = hashlib.sha256()

    def add(*parts: Any) -> None:
        digest.update(repr(parts).encode())

    def place(node: fx.Node) -> Any:
        return _Place(joint.place[node])

    for node in joint.nodes:
        target = node.target if node.op == "get_attr" else "" if node.op == "placeholder" else str(node.target)
        add(node.op, target, fx.map_arg(node.args, place), fx.map_arg(node.kwargs, place), _form(node.meta.get("val")),
            str(node.meta.get("recompute")), joint.is_tangent[joint.place[node]])
    add(joint.outputs_of_forward, joint.forward_outputs, joint.backward_outputs, joint.fuses, joint.share)
    add(sorted(joint.place[node] for node in default if node in joint.place))
    add(joint.sizes.key(joint.fuses))
    return digest.hexdigest()


def key_of_half(half: fx.GraphModule, *beside: Any) -> str:
    """A hash, equal for halves of the same joint graph for which inductor makes the same schedule. `beside`: what else that depends on."""
    digest = hashlib.sha256(repr(beside).encode())
    for node in half.graph.nodes:
        value = node.meta.get("val")
        marks = [each for each in node.meta.items() if each[0].startswith("reprise")]
        digest.update(repr((node.name, str(node.target), node.args, node.kwargs, getattr(value, "stride", tuple)(), marks)).encode())
    return digest.hexdigest()


class _Place(int):
    """No number of the graph's is written like it."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), str(value.dtype), str(value.device), value.requires_grad
    if isinstance(value, (list, tuple)):
        return [_form(each) for each in value]
    if isinstance(value, FakeScriptObject):  # such as a mesh of devices, whose text has an address
        return value.script_class_name
    return str(value)
