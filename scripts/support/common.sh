# Sourced by the scripts: the repository's root as working folder, how they talk, and which LibTorch and
# Python they use. The choice is made here alone, so that setup, build and run agree.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
torch_oldest=2.11
# Debian's packages with the libraries that building and testing need; scripts/gpu takes them along.
libraries=(libcli11-dev libfmt-dev libgmock-dev libgtest-dev librapidcheck-dev libxxhash-dev nlohmann-json3-dev
  zlib1g-dev)
# Paths in the sources are relative to ccache, so that one checkout's results serve another.
export CCACHE_BASEDIR=$root

step() { printf -- '-- %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The comment block at the head of a script is its help.
help_of() { sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//;p}' "$1"; }

# Prints the folder of python $1's torch if it is not too old; does not import it.
supported_torch_of() {
  (cd / && "$1" - "$torch_oldest") 2>/dev/null <<'PYTHON'
import importlib.util, os, re, sys
spec = importlib.util.find_spec("torch")
folder = os.path.dirname(spec.origin)
version = re.search(r"__version__ = '(\d+)\.(\d+)", open(os.path.join(folder, "version.py")).read())
pair = lambda text: tuple(int(part) for part in text.split("."))
if (int(version[1]), int(version[2])) < pair(sys.argv[1]):
    sys.exit(1)
print(folder)
PYTHON
}

# Sets REPRISE_TORCH_DIR, and REPRISE_PYTHON to an interpreter that has torch where there is one. Fails
# where neither the environment, the python3 on the path nor .venv has a supported LibTorch.
choose_torch() {
  local python
  if [ -n "${REPRISE_TORCH_DIR:-}" ]; then
    # The interpreter of <prefix>/lib/python3.x/site-packages/torch, if it is a wheel.
    if [ -z "${REPRISE_PYTHON:-}" ] && [ -x "$REPRISE_TORCH_DIR/../../../../bin/python3" ]; then
      REPRISE_PYTHON=$(cd "$REPRISE_TORCH_DIR/../../../../bin" && pwd)/python3
    fi
  else
    for python in python3 "$root/.venv/bin/python3"; do
      if REPRISE_TORCH_DIR=$(supported_torch_of "$python"); then
        REPRISE_PYTHON=$(command -v "$python")
        break
      fi
    done
  fi
  [ -n "${REPRISE_TORCH_DIR:-}" ] || return 1
  export REPRISE_TORCH_DIR REPRISE_PYTHON=${REPRISE_PYTHON:-python3}
}

# What the tests and benchmarks of the Python package need, by pip, where torch is the one in .venv. Another
# environment is left as it is.
setup_python_tests() {
  [ "$REPRISE_PYTHON" = "$root/.venv/bin/python3" ] || return 0
  # Found, not imported: the imports would take seconds.
  "$REPRISE_PYTHON" - <<'PYTHON' && return
import importlib.util, sys
names = ["accelerate", "hypothesis", "lightning", "mypy", "pytest", "scikit_build_core", "transformers"]
sys.exit(any(importlib.util.find_spec(name) is None for name in names))
PYTHON
  step "Python tests: $(tr '\n' ' ' <scripts/support/requirements-python.txt)"
  # shellcheck disable=SC2086  # several options in one variable
  "$REPRISE_PYTHON" -m pip install -qq --disable-pip-version-check ${REPRISE_PIP_OPTIONS:-} \
    -r scripts/support/requirements-python.txt || fail "pip could not install scripts/support/requirements-python.txt"
}

# The tools that read sources, by pip, in an environment of their own: a distribution has but some versions.
setup_tools() {
  local wanted=scripts/support/requirements-tools.txt
  cmp -s $wanted build/tools/installed.txt && return
  step "tools, in build/tools: $(tr '\n' ' ' <$wanted)"
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  # shellcheck disable=SC2086  # several options in one variable
  python3 -m venv build/tools &&
    build/tools/bin/python3 -m pip install -qq --disable-pip-version-check ${REPRISE_PIP_OPTIONS:-} -r $wanted &&
    cp $wanted build/tools/installed.txt || fail "pip could not install $wanted"
}

# Adds timm, and the torchvision that it imports, to PYTHONPATH. They are not in the environment: PyPI's torchvision is for
# CUDA, and other packages would import it where it cannot be loaded.
setup_timm() {
  local minor
  if [ ! -d build/timm/timm ]; then
    minor=$("$REPRISE_PYTHON" -c 'from torch.version import __version__; print(__version__.split(".")[1])')
    step "timm, in build/timm"
    # shellcheck disable=SC2086  # several options in one variable
    "$REPRISE_PYTHON" -m pip install -qq --disable-pip-version-check ${REPRISE_PIP_OPTIONS:-} --no-deps --target build/timm \
      timm==1.0.31 pillow==13.0.0 "torchvision==0.$((minor + 15)).*" || fail "pip could not install timm 1.0.31"
  fi
  export PYTHONPATH=$root/build/timm${PYTHONPATH:+:$PYTHONPATH}
}

# Whether the Python package can be built for the interpreter that has torch.
has_python_headers() {
  [ -e "$REPRISE_TORCH_DIR/lib/libtorch_python.so" ] && "$REPRISE_PYTHON" 2>/dev/null - <<'PYTHON'
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PYTHON
}

# Compilers of LibTorch's headers take up to 3 GB each.
parallel_jobs() {
  local by_memory
  by_memory=$(awk '/MemAvailable/ {print int($2 / 3000000)}' /proc/meminfo)
  [ "$by_memory" -ge 1 ] || by_memory=1
  [ "$by_memory" -lt "$(nproc)" ] && echo "$by_memory" || nproc
}

has_package() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs packages by apt, as root or with sudo.
install_packages() {
  local as_root=() log
  [ $# -gt 0 ] || return 0
  step "apt packages: $*"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "missing packages, and neither root nor sudo to install them; as root run: apt-get install $*"
    as_root=(sudo)
  fi
  log=$(mktemp)
  "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || { cat "$log" >&2 && fail "apt-get update failed"; }
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
    >"$log" 2>&1 || { cat "$log" >&2 && fail "apt-get could not install: $*"; }
  rm -f "$log"
}
