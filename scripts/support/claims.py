"""What texts about activation checkpointing say in figures, measured: called by scripts/claims.

Rows are kept with their commands, dates and machines in a JSON file beside the page, from which the page is written, so
that a row can be measured anew by itself and no other one takes its date. claim_rows.py has the claims.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys

from claim_rows import Claims, Row

PAGE = "docs/results/claims.md"


class Programs:
    """Runs each command once; what is printed as JSON is remembered."""

    def __init__(self, folder, quick):
        self.folder, self.quick, self.known = folder, quick, {}

    def json(self, *arguments):
        if arguments not in self.known:
            command = [os.path.join(self.folder, "reprise"), *arguments, "--json"]
            print("-- reprise", *arguments, file=sys.stderr)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"error: {' '.join(command)}\n{done.stderr}")
            self.known[arguments] = json.loads(done.stdout)
        return self.known[arguments]

    def bench(self, name):
        if name not in self.known:
            command = [os.path.join(self.folder, "reprise_bench"), name, "--json"]
            if self.quick:
                command.append("--quick")
            print("-- scripts/bench", name, file=sys.stderr)
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            # 1: a bar was missed, and bars are not what is asked for here.
            if done.returncode not in (0, 1):
                raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}")
            lines = (json.loads(line) for line in done.stdout.splitlines())
            self.known[name] = {line["case"]: line for line in lines}
        return self.known[name]


def machine(programs):
    facts = programs.json("info")
    name = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {facts['cores']} cores, LibTorch {facts['libtorch']} on the CPU, one thread"


def measured(claims, names, where):
    for name in names:
        # Of the programs that run meanwhile: what times depend on.
        load = max(os.getloadavg()[0], 1)
        for row in claims.rows(name):
            yield dataclasses.replace(row, name=name, date=str(datetime.date.today()), machine=where, load=f"{load:.0f}")


def document(rows):
    machines = list(dict.fromkeys(row.machine for row in rows))
    letters = {each: chr(ord("A") + number) for number, each in enumerate(machines)}
    head = """# What is said about checkpointing, and what comes out here

Written by `scripts/claims`, which measures all rows, or by `scripts/claims --only NAME` some of them; each has its
command, its date and its machine. Machines are shared with other programs: *load* is how many wanted to run when the row
was begun. Times are medians of steps that take turns with the plain step, beside the least and the most of the rounds.
What decides between *holds* and *does not hold* is in `scripts/support/claim_rows.py`, beside the text's figure; claims
that turn with a flag are shown with both values. The texts speak of accelerators: where a time is another here, the ratio
of computing to moving is another, too. Nothing here was measured on one.

"""
    head += "".join(f"- {letter}: {each}\n" for each, letter in letters.items())
    head += """
| claim | the text's figure | here | spread | verdict | command | measured | name |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
    return head + "".join(
        f"| {row.claim} | {row.text} | {row.ours} | {row.spread} | *{row.verdict}* | `{row.command}` | "
        f"{row.date}, {letters[row.machine]}, load {row.load} | {row.name} |\n" for row in rows)


def kept_rows(file):
    if not os.path.exists(file):
        return []
    with open(file, encoding="utf-8") as text:
        return [Row(**row) for row in json.load(text)]


def main():
    parser = argparse.ArgumentParser(prog="scripts/claims")
    parser.add_argument("--programs", required=True, help="the folder of reprise and reprise_bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else Claims.ORDER
    for name in names:
        if name not in Claims.ORDER:
            raise SystemExit(f"error: there is no claim '{name}'; there are {', '.join(Claims.ORDER)}")
    programs = Programs(os.path.abspath(options.programs), options.quick)
    output = options.output or ("" if options.quick else PAGE)
    file = os.path.splitext(output)[0] + ".json"
    rows = [row for row in kept_rows(file) if row.name not in names] if output else []
    for row in measured(Claims(programs, options.quick, options.steps), names, machine(programs)):
        rows.append(row)
    rows.sort(key=lambda row: Claims.ORDER.index(row.name))
    if not output:
        print(document(rows), end="")
        return
    with open(file, "w", encoding="utf-8") as text:
        json.dump([dataclasses.asdict(row) for row in rows], text, ensure_ascii=False, indent=1)
        text.write("\n")
    with open(output, "w", encoding="utf-8") as text:
        text.write(document(rows))


if __name__ == "__main__":
    main()
