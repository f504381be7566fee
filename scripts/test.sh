#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must hold: format, lint, types, tests. Sets up all it needs in .venv and .wheels,
# and as root with apt-get.
#
#   scripts/test.sh                          everything
#   scripts/test.sh fast                     without the tests marked torchrun, slurm, browser or slow
#   scripts/test.sh tests/torch_trace        further arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

install_into_venv train,view,dev
if [[ ${1:-} != fast ]]; then
  install_test_programs
fi

.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/lint-imports
if [[ ${1:-} == fast ]]; then
  shift
  .venv/bin/python -m pytest -m "not torchrun and not slurm and not browser and not slow" "$@"
else
  .venv/bin/python -m pytest "$@"
fi
