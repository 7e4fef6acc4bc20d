"""Several processes that train one model take one plan, where they compile the same graph.

They agree over the store of the default process group, by keys that each writes and all look for. So a process that
compiles something else, or nothing, makes nobody hang: after a while, or as soon as it is known, each plans for itself.
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ._cache import CachedPlanner
from ._joint import Others
from ._plan import Chosen, NoPlan

# Seconds that a process waits until the others compile, too, and until rank 0 has planned.
_WAIT = 120.0
_LOOK_AGAIN = 0.02
_numbers = itertools.count()


class Agreement:
    """What the processes agree on for the graphs of one budget, in the order in which these are compiled."""

    def __init__(self) -> None:
        # Budgets are made in the same order in each process.
        self._name = f"reprise/compiled/{next(_numbers)}"
        self._graphs = 0
        self._is_alone = False

    def is_in_force(self) -> bool:
        return not self._is_alone and _store() is not None

    def choose(self, planner: CachedPlanner, room: int, others: Others) -> Chosen:
        """The plan for the least of all processes' bytes, as rank 0 has made it. Raises NoPlan in all where there is none."""
        store = None if self._is_alone else _store()
        if store is None:
            return planner.choose(room, others)
        place = f"{self._name}/{self._graphs}"
        self._graphs += 1
        asked = self._exchange(store, place, {"key": planner.key, "room": room, "others": others.written()})
        if asked is None:
            return planner.choose(room, others)
        room = min(each["room"] for each in asked)
        others = Others.most([each["others"] for each in asked])
        if dist.get_rank() == 0:
            try:
                chosen = planner.choose(room, others)
            except NoPlan as none:
                store.set(f"{place}/plan", json.dumps({"least": none.least}))
                raise
            plan = {"cut": chosen.cut.written(), "known": chosen.halves.known, "recompute_seconds": chosen.recompute_seconds,
                    "seconds": chosen.seconds}
            store.set(f"{place}/plan", json.dumps(plan))
            return chosen
        if not _comes(lambda: bool(store.check([f"{place}/plan"]))):
            self.leave("rank 0 has made no plan")
            return planner.choose(room, others)
        plan = json.loads(store.get(f"{place}/plan"))
        if "least" in plan:
            raise NoPlan(plan["least"])
        return planner.realized(**plan, others=others)

    def leave(self, why: str | None = None) -> None:
        """From now on this process plans for itself; `why` is said."""
        if self._is_alone:
            return
        self._is_alone = True
        store = _store()
        if store is None:
            return
        store.set(f"{self._name}/alone/{dist.get_rank()}", "")
        if why is not None:
            warnings.warn(f"reprise.compile: rank {dist.get_rank()} plans its compiled graphs for itself from now on: {why}",
                          stacklevel=4)

    def _exchange(self, store: Any, place: str, mine: dict[str, Any]) -> list[dict[str, Any]] | None:
        """What every process has written at that place, or None where they go separate ways."""
        ranks = range(dist.get_world_size())
        names = [f"{place}/{rank}" for rank in ranks]
        store.set(names[dist.get_rank()], json.dumps(mine))

        def is_left() -> bool:
            return any(store.check([f"{self._name}/alone/{rank}"]) for rank in ranks)

        if not _comes(lambda: bool(store.check(names)) or is_left()) or not store.check(names):
            if is_left():
                self.leave("another rank does")
            else:
                missing = [rank for rank in ranks if not store.check([names[rank]])]
                self.leave(f"ranks {missing} have compiled no such graph for {_WAIT:g} s")
            return None
        found = [json.loads(store.get(name)) for name in names]
        if any(each["key"] != mine["key"] for each in found):
            unlike = [rank for rank in ranks if found[rank]["key"] != mine["key"]]
            self.leave(f"ranks {unlike} compile another graph than this one")
            return None
        return found


def _store() -> Any:
    """Of the default process group, or None where this process trains alone."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1 or dist.get_backend() == "fake":
        return None
    return torch.distributed.distributed_c10d._get_default_store()


def _comes(is_there: Callable[[], bool]) -> bool:
    """Whether it is so before the wait is over."""
    end = time.monotonic() + _WAIT
    while not is_there():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_AGAIN)
    return True
