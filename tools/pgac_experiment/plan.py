"""What is run: models and their shapes, methods, seeds; in full, and in the quick form."""

import dataclasses
import json

from errors import ExperimentError

MODELS = ["gpt", "bert", "vit"]
METHODS = ["none", "uniform", "every-block", "random", "dtr", "dtr-influence", "budget", "pgac", "pgac:influence", "pgac:cost",
           "pgac:product", "pgac:lossy"]
# Other parameters of PGAC, and the search for the fastest mask that fits.
VARIATIONS = ["pgac,q=0.25", "pgac,q=0.75", "pgac,alpha=0", "pgac,alpha=0.99", "pgac,gamma=linear", "pgac,gamma=cosine",
              "pgac,gamma=learned", "pgac:cost,search=yes"]
QUICK_METHODS = ["none", "uniform", "random", "dtr", "pgac:influence"]

# Methods without a budget take the bytes that they take.
WITHOUT_BUDGET = {"none", "every-block"}

SHAPES = {"gpt": {"layers": 8, "width": 96, "heads": 4, "context": 128, "batch": 4},
          "bert": {"layers": 8, "width": 96, "heads": 4, "context": 128, "batch": 4},
          "vit": {"layers": 8, "width": 64, "heads": 4, "patch": 2, "batch": 48}}
QUICK_SHAPES = {"gpt": {"layers": 6, "width": 64, "heads": 4, "context": 64, "batch": 4},
                "bert": {"layers": 6, "width": 64, "heads": 4, "context": 64, "batch": 4},
                "vit": {"layers": 6, "width": 64, "heads": 4, "patch": 2, "batch": 24}}


@dataclasses.dataclass(frozen=True)
class Run:
    model: str
    method: str
    seed: int

    def folder(self, out):
        return out / "runs" / self.model / self.method.replace(":", "=") / str(self.seed)


@dataclasses.dataclass(frozen=True)
class Settings:
    models: list
    methods: list
    seeds: int
    steps: int
    budget: str
    threads: int
    shapes: dict
    text: list  # paths; empty: what data.py writes

    def runs(self):
        """Seed by seed, so that early on there is something of every method. Each seed begins with another method, since a
        machine may grow slower or faster meanwhile."""
        methods = list(self.methods)
        for seed in range(1, self.seeds + 1):
            for model in self.models:
                for method in methods:
                    yield Run(model, method, seed)
            methods = methods[1:] + methods[:1]

    def json(self):
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def settings(options):
    """Settings by the command line. Throws ExperimentError for values that cannot work."""
    models = options.models or MODELS
    methods = " ".join(options.methods or []).split() or (QUICK_METHODS if options.quick else METHODS + VARIATIONS)
    for model in models:
        if model not in MODELS:
            raise ExperimentError(f"--models names '{model}'; choose of {', '.join(MODELS)}")
    for given, option in ((models, "--models"), (methods, "--methods")):
        if len(set(given)) < len(given):
            raise ExperimentError(f"{option} names one twice in {' '.join(given)}; once is enough")
    seeds = (3 if options.quick else 4) if options.seeds is None else options.seeds
    steps = (8 if options.quick else 50) if options.steps is None else options.steps
    for value, least, option, why in ((seeds, 1, "--seeds", "a run needs a seed"),
                                      (steps, 2, "--steps", "the first step is not counted"),
                                      (options.threads, 1, "--threads", "a run needs a thread")):
        if value < least:
            raise ExperimentError(f"{option} is {value}; give at least {least}, since {why}")
    shapes = QUICK_SHAPES if options.quick else SHAPES
    for path in options.text or []:
        if not path.exists():
            raise ExperimentError(f"--text {path} does not exist; give a text file or a folder of them")
    return Settings(models=models, methods=methods, seeds=seeds, steps=steps, budget=options.budget, threads=options.threads,
                    shapes={model: shapes[model] for model in models}, text=[str(path.resolve()) for path in options.text or []])
