"""Writes what the parts have given to one folder: gpu.json with everything, gpu.md for reading, gpu.log with the ends of all
logs."""

import datetime
import json
import subprocess

import machine

PARTS = ("build", "tests", "python", "compiled", "bench", "models")
END_OF_LOG = 100_000


def commit_of(root):
    """Of the pack, or of the checkout."""
    if (root / "pack.json").exists():
        packed = json.loads((root / "pack.json").read_text())
        return packed["commit"] + (", with changes" if packed["changed"] else "")
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def gathered(state, root, torch):
    parts = {part: json.loads((state / f"{part}.json").read_text()) for part in PARTS if (state / f"{part}.json").exists()}
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit_of(root),
            "machine": machine.facts(torch), "parts": parts}


def cell(value):
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) and value < 1e5 else f"{value:,.0f}" if isinstance(value, float) else str(value)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]) + "\n"


def gigabytes(count):
    return None if count is None else count / 1e9


def steps_of(part):
    return table(("step", "state", "seconds", "date"),
                 [(name, record["state"], record.get("seconds"), record.get("date")) for name, record in part.items()
                  if "command" in record])


def of_tests(part):
    text = ""
    for name, record in part.items():
        result = record.get("result", {})
        if "passed" not in result:
            continue
        text += f"\n{name}: {result['passed']} passed, {len(result['failures'])} failed, {sum(result['skipped'].values())} skipped.\n"
        text += "".join(f"\n- FAILED {each}" for each in result["failures"])
        text += "".join(f"\n- skipped {count}: {why}" for why, count in result["skipped"].items()) + "\n"
    return text


def of_bench(part):
    text = ""
    for name, record in part.items():
        if not isinstance(record.get("result"), list):
            continue
        columns = ("case", "ours", "peer", "unit", "ratio", "runs", "spread", "bar", "ok")
        rows = [[each.get(column) for column in columns] for each in record["result"]]
        text += f"\n`reprise_bench`, {name}:\n\n" + table(columns, rows)
    return text


def of_compiled(part):
    text = ""
    for network, record in part.items():
        if not isinstance(record.get("result"), list):
            continue
        rows = []
        for figure in record["result"]:
            if "failed" in figure:
                rows.append((figure["case"], figure["failed"], *[None] * 6))
                continue
            total = {key: sum(graph[key] for graph in figure["graphs"]) if figure["graphs"] else None
                     for key in ("predicted_peak", "planning_seconds")}
            rows.append((figure["case"], figure["tokens_per_s"], figure["ms"], figure["spread"], gigabytes(figure["peak_bytes"]),
                         gigabytes(total.get("predicted_peak")), figure["first_ms"] / 1000, total.get("planning_seconds")))
        text += f"\n{network}:\n\n" + table(("case", "tokens a second", "ms a step", "spread", "peak, GB", "predicted, GB",
                                           "first step, s", "planning, s"), rows)
    return text


def of_models(part):
    columns = ("case", "batch", "tokens a second", "ms a step", "first step, ms", "peak, GB", "of the last step, GB",
               "reserved, GB", "the card's, GB")
    rows, largest = [], []
    for name, record in part.items():
        result = record.get("result", {})
        if name.startswith("largest: "):
            largest.append((name.removeprefix("largest: "), result["batch"], gigabytes(result["peak_bytes"]),
                            gigabytes(result["limit_bytes"])))
        elif record["state"] == "done" and "ms" in result:
            card = result.get("card_mib")
            rows.append((name, result["batch"], result["tokens_per_s"], result["ms"], result["first_ms"],
                         gigabytes(result["peak_bytes"]), gigabytes(result["last_peak_bytes"]),
                         gigabytes(result.get("reserved_bytes")), None if card is None else card * 2**20 / 1e9))
        else:
            code = f", exit code {record.get('exit_code')}" if record["state"] == "failed" else ""
            rows.append((name, record["state"] + code, *[None] * 7))
    text = "\n" + table(columns, rows)
    if largest:
        text += "\nThe largest batch found that trains in so many bytes:\n\n" + table(("case", "batch", "peak, GB", "limit, GB"), largest)
    return text


DETAILS = {"tests": of_tests, "python": of_tests, "compiled": of_compiled, "bench": of_bench, "models": of_models}


def page(results):
    where = results["machine"]
    torch = where["torch"]
    text = f"# reprise on a GPU\n\nWritten by `scripts/gpu run` on {results['date']}, of commit {results['commit']}.\n\n"
    text += table(("", ""), [
        ("GPU", "; ".join(where["gpus"]) or "none"), ("processor", f"{where['processor']}, {where['cores']} cores"),
        ("memory, GB", where["memory_bytes"] / 1e9), ("system", f"{where['system']}, kernel {where['kernel']}"),
        ("torch", f"{torch['version']}, CUDA {torch['cuda'] or 'none'}"), ("compiler", where["compiler"]),
        ("nvcc", where["nvcc"]), ("Python", where["python"])])
    for part, record in results["parts"].items():
        text += f"\n## {part}\n\n" + steps_of(record) + DETAILS.get(part, lambda _: "")(record)
    return text


def write(out, state, root, torch):
    out.mkdir(parents=True, exist_ok=True)
    results = gathered(state, root, torch)
    (out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "gpu.md").write_text(page(results))
    with open(out / "gpu.log", "w", encoding="utf-8") as text:
        for log in sorted(state.glob("*.log")):
            text.write(f"==== {log.name}\n{log.read_text(errors='replace')[-END_OF_LOG:]}\n")
