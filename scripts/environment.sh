# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the scripts beside it: a Python that Megatron's wheels run on, and .venv made with it.

# Prints the path of a Python >= 3.12: $PYTHON, python3.1x on the PATH, pyenv's versions.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.12 python3.13 python3.14 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
    # Run it: a pyenv shim is on the PATH for every version and works for the active one only.
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  echo "No Python 3.12 or newer found, which Megatron's training loop needs: install one" \
    "(apt install python3.12 python3.12-venv, or pyenv install 3.12) or name it in PYTHON." >&2
  return 1
}

# Makes .venv, unless it is there.
make_venv() {
  local python
  if [[ ! -x .venv/bin/python ]]; then
    python=$(find_python)
    "$python" -m venv .venv
  fi
}

# Makes .venv and installs this checkout with the given extras, unless exactly that is there.
install_into_venv() { # extras, such as train,view
  local stamp=.venv/.installed wanted
  if [[ -L .venv ]]; then
    # To install would turn the other checkout's environment to this one.
    echo ".venv is a link to $(readlink .venv): used as it is, with this checkout on PYTHONPATH"
    export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
    return
  fi
  wanted="$1 $(cat pyproject.toml setup.py | sha256sum)"
  if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    return
  fi
  make_venv
  echo "installing .[$1] into .venv with $(.venv/bin/python --version) (several GB with torch, some minutes) ..."
  .venv/bin/python -m pip install --quiet --no-compile --editable ".[$1]"
  # pip would compile on one core. What is left to the first import warns there, of Megatron's text
  # too, and in tests warnings are errors. Files for other Pythons do not compile. A third is imported
  # by nobody: other libraries' tests, and the models of transformers.
  .venv/bin/python -m compileall -q -j 0 -x '/(tests|transformers/models/[^/]+)/' .venv/lib \
    >/dev/null 2>&1 || true
  printf '%s' "$wanted" >"$stamp"
}

# What some tests use beside Python: a browser, shellcheck, a SLURM of one's own, zsh. Tests whose
# program is missing are skipped and say so; only root can install, and only where apt-get is.
install_test_programs() {
  local package missing=()
  for package in chromium:chromium shellcheck:shellcheck slurmctld:slurm-wlm munged:munge zsh:zsh; do
    command -v "${package%%:*}" >/dev/null || missing+=("${package#*:}")
  done
  if ((${#missing[@]} == 0 || EUID != 0)) || ! command -v apt-get >/dev/null; then
    return
  fi
  echo "installing ${missing[*]} for the tests ..."
  mkdir -p .venv # which may be on its way
  {
    apt-get -q update
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=400 \
      install -y --no-install-recommends "${missing[@]}"
  } >.venv/apt.log 2>&1 || echo "could not (.venv/apt.log): tests that need them are skipped" >&2
}
