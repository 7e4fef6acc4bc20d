"""The build backend of `pip install .`: scikit-build-core, with the torch that reprise will run with.

The module works only with the minor version of torch that it was built with. So an isolated build takes the torch of the
environment that it installs into, where there is one, and the wheel requires that minor version.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import site
import sysconfig

from scikit_build_core import build as _build
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist  # noqa: F401  (hooks of the backend)

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# As cmake/RepriseTorch.cmake.
_OLDEST, _NEWEST = (2, 11), (2, 15)
_SUPPORTED = f"torch>={_OLDEST[0]}.{_OLDEST[1]},<{_NEWEST[0]}.{_NEWEST[1] + 1}"


def _version_in(folder: pathlib.Path) -> tuple[int, int] | None:
    file = folder / "version.py"
    found = re.search(r"__version__ = '(\d+)\.(\d+)", file.read_text()) if file.exists() else None
    return (int(found[1]), int(found[2])) if found else None


def _torch() -> pathlib.Path | None:
    """The folder of the torch to build against; None if there is none yet."""
    given = os.environ.get("REPRISE_TORCH_DIR")
    if given:
        return pathlib.Path(given)
    # An isolated build does not see these folders by itself.
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        places.append(str(pathlib.Path(spec.origin).parents[1]))
    for place in places:
        version = _version_in(pathlib.Path(place) / "torch")
        if version and _OLDEST <= version <= _NEWEST:
            return pathlib.Path(place) / "torch"
    return None


def get_requires_for_build_wheel(config_settings=None):
    required = list(_build.get_requires_for_build_wheel(config_settings))
    return required if _torch() else [*required, _SUPPORTED]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    torch = _torch()
    if torch is None:
        raise SystemExit(f"reprise: no torch to build against; install {_SUPPORTED}, or set REPRISE_TORCH_DIR")
    # A build folder remembers the torch of its last build; this one wins.
    settings = {**(config_settings or {}), "cmake.define.REPRISE_TORCH_DIR": str(torch)}
    if os.environ.get("REPRISE_PREBUILT"):  # of scripts/wheel
        settings |= {"cmake.define.REPRISE_PREBUILT": os.environ["REPRISE_PREBUILT"], "build-dir": "build/wheel/prebuilt"}
    os.environ.setdefault("CCACHE_BASEDIR", str(_ROOT))
    return _build.build_wheel(wheel_directory, settings, metadata_directory)


def dynamic_metadata(field, settings=None, project=None):
    """For scikit-build-core: what the wheel requires."""
    torch = _torch()
    version = _version_in(torch) if torch else None
    return [f"torch=={version[0]}.{version[1]}.*" if version else _SUPPORTED]
