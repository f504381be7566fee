#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Wheel and sdist as users install them: each in a clean Python 3.10, 3.12 and 3.13, without torch, where
# torch-trace analyses a sample. It installs packages from the index, some minutes; not in CI.
#
#   scripts/test_package.sh                  all of these Pythons that are there
#   scripts/test_package.sh 3.13             only this one
#
# Everything it makes lies in a temporary folder, which is removed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
SAMPLE=$PWD/tests/data/analysis/dp4-rank2-slow

find_python() { # 3.12
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c "import sys, venv; sys.exit(sys.version_info[:2] != (${1/./, }))" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

git archive HEAD | tar -x -C "$WORK" --one-top-level=source
.venv/bin/python -m build --outdir "$WORK/dist" "$WORK/source" >"$WORK/build.log" 2>&1 || {
  tail -20 "$WORK/build.log" >&2
  exit 1
}

tested=0
for version in "${@:-3.10}" $( (($# == 0)) && echo 3.12 3.13); do
  python=$(find_python "$version") || {
    echo "Python $version: not found, not tested" >&2
    continue
  }
  for package in "$WORK"/dist/*; do
    "$python" -m venv --clear "$WORK/venv"
    "$WORK/venv/bin/pip" install --quiet --disable-pip-version-check "$package"
    cd "$WORK" # without the checkout on the path
    "$WORK/venv/bin/python" - <<'END'
from importlib.util import find_spec

from megatron import torch_profile, torch_trace

assert find_spec("torch") is None, "torch was installed"
assert torch_profile.__all__ and torch_trace.__all__
END
    "$WORK/venv/bin/torch-trace" analyze --no-partials "$SAMPLE" | grep -q "straggler"
    "$WORK/venv/bin/torch-trace" sql "$SAMPLE" "select count(*) as n from ranks" --format csv | grep -qx 4
    echo "Python $version, $(basename "$package"): works without torch"
    tested=$((tested + 1))
    cd - >/dev/null
  done
done
((tested > 0))
