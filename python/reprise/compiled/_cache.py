"""Plans on disk: a graph that was planned before, by another process, too, is not planned again.

A file is of one graph, one torch, one version of the package and one device. It holds the plans that were made for it, and
each says for how many bytes. A file that is not whole, or of which any part does not fit the graph, is as if there were none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from .. import _version
from ._again import Cut
from ._joint import Joint, Layouts, Measured, Others
from ._key import key_of
from ._needs import Need
from ._plan import Chosen, GraphPlanner
from ._schedule import Halves

# The folder; empty for no plans on disk.
_VARIABLE = "REPRISE_PLAN_CACHE_DIR"
_MOST_PLANS = 16
# A plan is taken for that much more room than it was made for: what is live before a step differs a little.
_NEAR = 1.005


class CachedPlanner(GraphPlanner):
    """Plans that are on disk are read, and others written. `key` tells the graph from others."""

    def __init__(self, joint: Joint, default: list[fx.Node]) -> None:
        self.key = key_of(joint, default)
        folder = _folder()
        self._file = folder / f"{_name_of(joint, self.key)}.json" if folder else None
        self._known: dict[str, Any] = {"plans": []}
        halves = None
        if self._file is not None:
            try:
                known = _read(self._file)
                halves = _halves_of(known["default"], Others(), joint, Cut(joint.saved_by_default(default)))
                for each in known["plans"]:
                    cut = Cut.read(each["cut"])
                    _halves_of(each["halves"], Others(), joint, cut)
                    if not cut.fits(joint):
                        raise ValueError("a plan of another graph")
                if known["need"] is not None:
                    Need.read(known["need"])
                draws = [joint.nodes[at].name for at in known["draws"]]
                if not joint.draws.issuperset(draws):
                    raise ValueError("draws of another graph")
                joint.costs = {name: (each[0], each[1]) for name, each in known["costs"].items()}
                joint.layouts = _layouts_of(known["layouts"], joint)
                joint.draw_order, self._known = draws, known
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                halves = None
        super().__init__(joint, default, halves)

    def choose(self, room: int, others: Others = Others()) -> Chosen:
        return self._known_plan(room, others) or self._note(room, others, super().choose(room, others))

    def smallest_beside(self, others: Others) -> Chosen:
        return self._known_plan(None, others) or self._note(None, others, super().smallest_beside(others))

    def _known_plan(self, room: int | None, others: Others) -> Chosen | None:
        """`room`: None for the smallest one."""
        begin = time.perf_counter()
        for each in self._known["plans"]:
            made_for = each["room"]
            is_smallest = room is None and made_for is None
            fits = room is not None and made_for is not None and each["halves"]["peak"] <= room <= _NEAR * made_for
            if (is_smallest or fits) and each["others"] == others.written():
                self.default = self._alone.beside(others)
                cut = Cut.read(each["cut"])
                halves = _halves_of(each["halves"], others, self.joint, cut)
                return Chosen(cut, halves, self.default, each["recompute_seconds"], time.perf_counter() - begin,
                              each["seconds"], each["computes_otherwise"])
        return None

    def _note(self, room: int | None, others: Others, chosen: Chosen) -> Chosen:
        plan = {"room": room, "others": others.written(), "cut": chosen.cut.written(), "halves": _written(chosen.halves),
                "recompute_seconds": chosen.recompute_seconds, "seconds": chosen.seconds,
                "computes_otherwise": chosen.computes_otherwise}
        self._write({**self._known, "plans": [*self._known["plans"], plan][-_MOST_PLANS:]})
        return chosen

    def realized(self, cut: dict[str, Any], known: list[int] | None, recompute_seconds: float, seconds: float | None,
                 others: Others) -> Chosen:
        """The plan with that cut, which another process has made of the same graph."""
        begin = time.perf_counter()
        self.default = self._alone.beside(others)
        found = Cut.read(cut)
        return Chosen(found, Halves(self.joint, found, others, known), self.default, recompute_seconds, time.perf_counter() - begin, seconds)

    def need(self, graph: int = 0, measured: Measured | None = None, is_last: bool = False,
             beside: int | None = None) -> Need:
        if graph or measured or beside is not None:
            return super().need(graph, measured, is_last, beside)
        if self._known.get("need") is not None:
            return Need.read(self._known["need"])
        need = super().need()
        self._write({**self._known, "need": vars(need)})
        return need

    def _write(self, known: dict[str, Any]) -> None:
        self._known = {"need": None, **known, "default": _written(self._alone), "costs": self.joint.costs,
                       "draws": [self.joint.named[name] for name in self.joint.draw_order or ()],
                       "layouts": _written_layouts(self.joint)}
        if self._file is None:
            return
        text = json.dumps(self._known)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Nobody sees a half of it.
            with tempfile.NamedTemporaryFile("w", dir=self._file.parent, suffix=".new", delete=False) as out:
                out.write(f"{_sum_of(text)}\n{text}")
            os.replace(out.name, self._file)
        except OSError as error:
            _say(f"reprise.compile: plans cannot be written to {self._file.parent}: {error.strerror}; give another folder by "
                 f"{_VARIABLE}, or leave it empty for no plans on disk")


@functools.cache
def _say(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def _folder() -> pathlib.Path | None:
    """Beside inductor's own caches, where nothing else is asked for."""
    if torch.compiler.config.force_disable_caches:
        return None
    given = os.environ.get(_VARIABLE)
    if given is None:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return pathlib.Path(cache_dir()) / "reprise"
    return pathlib.Path(given) if given else None


def _name_of(joint: Joint, key: str) -> str:
    """Another one wherever another plan could come out."""
    devices = {each.meta["val"].device for each in joint.nodes if isinstance(each.meta.get("val"), torch.Tensor)}
    names = sorted(torch.cuda.get_device_name(each) if each.type == "cuda" else str(each) for each in devices)
    parts = [key, torch.__version__, _version.version, _sources(), names, torch.backends.cpu.get_cpu_capability(),
             torch.get_num_threads()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    digest = hashlib.sha256()
    for file in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: pathlib.Path) -> dict[str, Any]:
    found, _, text = file.read_text().partition("\n")
    if found != _sum_of(text):
        raise ValueError("not whole")
    known: dict[str, Any] = json.loads(text)
    return known


def _written(halves: Halves) -> dict[str, Any]:
    peak = halves.peak  # whatever it is the largest of is known then
    return {**{name: each for name, each in vars(halves).items() if isinstance(each, int)}, "peak": peak, "known": halves.known}


def _halves_of(written: dict[str, Any], others: Others, joint: Joint, cut: Cut) -> Halves:
    halves = Halves.__new__(Halves)
    known = None if written["known"] is None else [int(each) for each in written["known"]]
    counts = {name: int(each) for name, each in written.items() if name not in ("peak", "known")}
    vars(halves).update(counts, known=known, others=others, _to_schedule=None)
    halves.hand_over(joint, cut)
    return halves


def _written_layouts(joint: Joint) -> dict[str, Any] | None:
    """By the places of nodes: names are of one process."""
    if joint.layouts is None:
        return None

    def placed(found: Mapping[str, Any]) -> list[Any]:
        return [[joint.named[name], each] for name, each in found.items()]

    in_memory = joint.layouts.in_memory
    return {"saved": joint.layouts.saved, "strides": placed(joint.layouts.strides),
            "in_memory": None if in_memory is None else placed(in_memory),
            "operands": placed(joint.layouts.operands), "elements": placed(joint.layouts.elements),
            "kernels": placed(joint.layouts.kernels), "copied": placed(joint.layouts.copied),
            "elements_of_forward": None if joint.layouts.elements_of_forward is None else placed(joint.layouts.elements_of_forward),
            "vectors": placed({name: sorted(forms) for name, forms in joint.layouts.vectors.items()}),
            "loops": [[joint.named[name], placed(orders)] for name, orders in joint.layouts.loops.items()]}


def _layouts_of(written: dict[str, Any] | None, joint: Joint) -> Layouts | None:
    if written is None:
        return None

    def named(found: Any) -> dict[str, Any]:
        return {joint.nodes[at].name: None if each is None else tuple(map(int, each)) for at, each in found}

    in_memory = None if written["in_memory"] is None else named(written["in_memory"])
    loops = {joint.nodes[at].name: named(orders) for at, orders in written["loops"]}
    saved = joint.saved_for(set(written["saved"]))
    vectors = {joint.nodes[at].name: set(map(str, forms)) for at, forms in written["vectors"]}
    elements, of_forward, kernels = (None if found is None else {joint.nodes[at].name: int(each) for at, each in found}
                                     for found in (written["elements"], written["elements_of_forward"], written["kernels"]))
    return Layouts(saved, named(written["strides"]), in_memory, loops, named(written["operands"]), vectors, None, elements or {}, of_forward,
                   kernels or {}, named(written["copied"]))
