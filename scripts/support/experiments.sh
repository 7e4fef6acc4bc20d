# Sourced by scripts/setup: the Python packages of tools/pgac_experiment, and the python3 that has them.

install_experiment_packages() {
  "$1" -m pip install -qq --disable-pip-version-check "${@:2}" -r tools/pgac_experiment/requirements.txt
}

setup_experiments() {
  local python=$REPRISE_PYTHON
  # A python3 that belongs to somebody else's torch is left as it is.
  if [ "$python" != "$root/.venv/bin/python3" ]; then
    python=$root/.venv-experiments/bin/python3
    [ -x "$python" ] || python3 -m venv "$root/.venv-experiments" ||
      fail "python3 cannot make a virtual environment; install the packages of tools/pgac_experiment/requirements.txt"
  fi
  # An index of LibTorch's wheels, which REPRISE_PIP_OPTIONS may name, need not have them; pip's own has.
  # shellcheck disable=SC2086  # several options in one variable
  { [ -n "${REPRISE_PIP_OPTIONS:-}" ] && install_experiment_packages "$python" $REPRISE_PIP_OPTIONS 2>/dev/null; } ||
    install_experiment_packages "$python" ||
    fail "pip could not install the packages of tools/pgac_experiment/requirements.txt; set REPRISE_PIP_OPTIONS"
  step "experiments: $python tools/pgac_experiment/run.py --quick"
}
