"""Budgets in the training loops of other libraries, one module for each: transformers, lightning, accelerate.

Nothing is imported here, so that `import reprise` needs none of them.
"""

from __future__ import annotations

import importlib.util


def require(package: str) -> None:
    """Raises ImportError, with the remedy, where the library of an integration is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"reprise.integrations.{package} needs the package {package}, which is not installed; run `pip install {package}`",
            name=package)
