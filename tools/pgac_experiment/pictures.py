"""Pictures of the report, as SVG by matplotlib."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as pyplot  # noqa: E402
import numpy  # noqa: E402

import tables  # noqa: E402

PARTS = ["recompute_seconds", "packing_seconds", "tape_seconds"]


def draw(folder, logs):
    """Draws all pictures into `folder`. Returns (model, title, file) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    # The same runs give the same files.
    matplotlib.rcParams["svg.hashsalt"] = "pgac"
    drawn = []
    for model in logs.settings["models"]:
        methods = tables.methods_of(logs.runs, model)
        for name, title, picture in (("frontier", "memory and time of a step", frontier),
                                     ("parts", "where a step's time goes", parts), ("loss", "training loss", losses)):
            if methods:
                drawn.append((model, title, save(picture(logs, model, methods), folder / f"{model}-{name}.svg")))
        for method in methods:
            figure = masks(logs, model, method)
            if figure is not None:
                name = method.translate(str.maketrans(":,=", "---"))
                drawn.append((model, f"layers kept by {method}, seed 1", save(figure, folder / f"{model}-{name}-mask.svg")))
    return drawn


def save(figure, file):
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return file


def frontier(logs, model, methods):
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for method in methods:
        ours = of(logs.runs, model, method)
        axes.scatter(ours["peak_bytes"] / 1e6, ours["seconds"] * 1e3, s=18, label=method)
    axes.set_xlabel("most that a step adds to what is live before it (MB)")
    axes.set_ylabel("ms a step")
    axes.legend(fontsize=6, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def parts(logs, model, methods):
    figure, axes = pyplot.subplots(figsize=(6, 0.3 * len(methods) + 1))
    columns = ["forward_seconds", "backward_seconds", *PARTS, "seconds"]
    means = [of(logs.runs, model, method)[columns].mean() * 1e3 for method in methods]
    both = numpy.array([mean["forward_seconds"] + mean["backward_seconds"] for mean in means])
    overhead = [numpy.array([mean[part] for mean in means]) for part in PARTS]
    bars = [("forward and backward, the rest", both - sum(overhead)),
            *zip(("recomputation", "packing", "tape"), overhead),
            ("optimizer", numpy.array([mean["seconds"] for mean in means]) - both)]
    begin = numpy.zeros(len(methods))
    for label, width in bars:
        axes.barh(methods, width, left=begin, label=label)
        begin = begin + width
    axes.invert_yaxis()
    axes.set_xlabel("ms a step")
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(fontsize=6, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def losses(logs, model, methods):
    """One line for methods whose curves are equal."""
    figure, axes = pyplot.subplots(figsize=(6, 4))
    curves = {}
    for method in methods:
        curve = tuple(of(logs.steps, model, method).groupby("step")["loss"].mean())
        curves.setdefault(curve, []).append(method)
    for curve, same in curves.items():
        label = same[0] if len(same) == 1 else f"{same[0]} and {len(same) - 1} others, the same"
        axes.plot(range(1, len(curve) + 1), curve, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (nats)")
    axes.legend(fontsize=7)
    return figure


def masks(logs, model, method):
    """The mask that the threshold wanted, and the one that was run; None for methods without one."""
    steps = of(logs.steps, model, method)
    if "mask" not in steps or steps["mask"].isna().all():
        return None
    one = steps[steps["seed"] == steps["seed"].min()].sort_values("step")
    figure, both = pyplot.subplots(2, 1, figsize=(6, 3.4), sharex=True)
    for axes, column in zip(both, ("wanted", "mask")):
        kept = numpy.array([[int(digit) for digit in mask] for mask in one[column]]).T
        axes.imshow(kept, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest",
                    extent=(0.5, len(one) + 0.5, len(kept) - 0.5, -0.5))
        axes.set_ylabel("wanted" if column == "wanted" else "run")
    both[-1].set_xlabel("step (black: the layer is kept)")
    return figure


def of(table, model, method):
    return table[(table["model"] == model) & (table["method"] == method)]
