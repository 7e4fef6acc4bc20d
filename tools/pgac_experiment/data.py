"""The data that an installed Python has: topics of its documentation as text, and scikit-learn's handwritten digits."""

import pydoc_data.topics

import sklearn.datasets


def write_text(file):
    topics = pydoc_data.topics.topics
    file.write_text("\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n", encoding="utf-8")


def write_digits(file):
    """A line for each picture: 64 pixels from 0 to 16, and the digit."""
    digits = sklearn.datasets.load_digits()
    lines = (",".join(f"{value:g}" for value in [*pixels, digit]) for pixels, digit in zip(digits.data, digits.target))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def paths(out, settings, model):
    """The paths for `reprise train --data`. Writes what is missing below `out`."""
    if model != "vit" and settings.text:
        return settings.text
    file = out / "data" / ("digits.csv" if model == "vit" else "text.txt")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        (write_digits if model == "vit" else write_text)(partial)
        partial.rename(file)
    return [str(file)]
