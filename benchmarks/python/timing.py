"""Times and figures of the Python benches, taken and printed as those of the C++ benches are (benchmarks/README.md)."""

import json
import random
import statistics
import time


def race(cases, rounds):
    """Seconds of each case a round, the cases in another order each round. The clock is that of this thread, so what a
    thread that plans takes is left out."""
    seconds = {name: [] for name in cases}
    order = list(cases)
    shuffle = random.Random(1).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            begin = time.thread_time()
            cases[name]()
            seconds[name].append(time.thread_time() - begin)
    return seconds


def spread(values):
    """The distance between the quartiles as a share of the median."""
    if len(values) < 4:
        return 0.0
    first, median, third = statistics.quantiles(values, n=4)
    return (third - first) / abs(median) if median else 0.0


class Figures:
    """Prints a JSON object a line, or one table at the end."""

    def __init__(self, as_json, quick):
        self.as_json, self.quick, self.rows, self.failed = as_json, quick, [], False

    def add(self, bench, case, values, unit, peer=None, bar=None, ratio=None):
        """`values`: of ours, one a round. `bar`: the most that the ratio, or ours without a peer, may be."""
        ours = statistics.median(values)
        if ratio is None and peer:
            ratio = ours / peer
        judged = ours if ratio is None else ratio
        ok = None if bar is None or self.quick else judged <= bar
        row = {"bench": bench, "case": case, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio, "runs": len(values),
               "spread": spread(values)}
        if bar is not None:
            row |= {"bar": bar, "ok": ok}
        self.failed |= ok is False
        self.rows.append(row)
        if self.as_json:
            print(json.dumps(row), flush=True)

    def print(self):
        if self.as_json:
            return
        shown = [["bench", "case", "ours", "peer", "unit", "ratio", "bar", "runs", "spread"]]
        for row in self.rows:
            number = lambda key: "" if row.get(key) is None else f"{row[key]:.3f}"  # noqa: E731
            bar = number("bar") + {True: " ok", False: " MISSED", None: ""}[row.get("ok")]
            shown.append([row["bench"], row["case"], number("ours"), number("peer"), row["unit"], number("ratio"), bar,
                          str(row["runs"]), f"{row['spread']:.0%}"])
        widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
        for row in shown:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
