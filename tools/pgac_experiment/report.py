"""The report: one Markdown page of expectations, tables and pictures, made from the logs alone."""

import claims
import pictures
import plan
import tables

PAGE = "report.md"
# The methods whose expectations are judged, each with a correction of its own.
JUDGED = ["pgac", "pgac:influence", "pgac:cost", "pgac:product"]


def write(out, logs, command):
    """Writes the page and its pictures into `out`. Returns its path."""
    drawn = pictures.draw(out / "pictures", logs)
    page = "\n\n".join(part for part in [*opening(logs, command), *verdicts(logs), *models(out, logs, drawn)] if part)
    file = out / PAGE
    partial = file.with_suffix(".partial")
    partial.write_text(page + "\n", encoding="utf-8")
    partial.rename(file)
    return file


def opening(logs, command):
    first = logs.runs.iloc[0]
    machine = first["machine"]
    yield "# PGAC and its baselines"
    yield f"`{command}`, by reprise {first['version']} (LibTorch {first['libtorch']}): {len(logs.runs)} complete runs."
    budget = logs.settings["budget"]
    settings = [f"- machine: {machine['processor'] or 'unknown processor'}, {machine['cores']} cores; {machine['threads']} "
                f"thread(s) on {machine['device']}",
                f"- budget: {budget}" + (" of the plain training step's peak" if budget.endswith("%") else ""),
                f"- steps: {logs.settings['steps']} from each of {logs.settings['seeds']} seeds; the first step's time does not "
                "count"]
    for model in logs.settings["models"]:
        rows = logs.runs[logs.runs["model"] == model]
        if len(rows):
            settings.append(f"- {model}: {rows.iloc[0]['description']}; data {rows.iloc[0]['data'].split('/')[-1]} "
                            f"(fingerprint {rows.iloc[0]['fingerprint']})")
    yield "\n".join(settings)
    yield ("Recomputation, packing of masks into bits and the tape's own time pass inside of forward and backward; their sum is "
           "the overhead. The proposal also expects less energy; no counter is read, so energy is *not measured*.")
    if logs.failures:
        yield "These runs do not fit in their budget:"
        yield tables.failures(logs)


def verdicts(logs):
    judged = [(method, claims.judge(logs, method)) for method in JUDGED if method in logs.settings["methods"]]
    if not judged:
        return
    yield "## What was expected"
    yield claims.RULE
    for method, found in judged:
        yield f"### `{method}`"
        yield tables.expectations(found)


def models(out, logs, drawn):
    for model in logs.settings["models"]:
        methods = tables.methods_of(logs.runs, model)
        if not methods:
            continue
        methods.sort(key=order_of)
        yield f"## {model}"
        yield "Memory is what a step adds to the bytes that are live before it."
        yield tables.of_model(logs, model, methods)
        yield "Milliseconds of a step:"
        yield tables.parts_of_step(logs, model, methods)
        yield "What was learned:"
        yield tables.learning(logs, model, methods)
        masks = tables.masks(logs, model)
        if masks:
            yield "What PGAC's threshold wanted, and what was run:"
            yield masks
        for of_model, title, file in drawn:
            if of_model == model:
                yield f"![{title}]({file.relative_to(out)})"


def order_of(method):
    known = [*plan.METHODS, *plan.VARIATIONS]
    return known.index(method) if method in known else len(known)
