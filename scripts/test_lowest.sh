#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The read side with the lowest versions that pyproject.toml allows, on Python 3.10: an install moves
# nothing that these bounds allow, so they are worth what this script finds.
#
#   scripts/test_lowest.sh                        what touches every dependency, about a minute of computing
#   scripts/test_lowest.sh tests/analysis         further arguments go to pytest
#   PYTHON=/opt/python3.10/bin/python scripts/test_lowest.sh
#
# Everything it makes lies in .venv-lowest/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python_3_10() {
  local candidate
  for candidate in ${PYTHON:-} python3.10 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10*/bin/python; do
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "No Python 3.10 found: install one (pyenv install 3.10) or name it in PYTHON." >&2
  return 1
}

VENV=.venv-lowest
if [[ ! -x $VENV/bin/python ]]; then
  PYTHON_3_10=$(find_python_3_10)
  "$PYTHON_3_10" -m venv $VENV
fi
mapfile -t LOWEST < <($VENV/bin/python - <<'END'
from pathlib import Path

from pip._vendor import tomli

project = tomli.loads(Path("pyproject.toml").read_text())["project"]
for requirement in project["dependencies"]:
    print(requirement.replace(">=", "=="))
END
)
echo "${LOWEST[*]}"
$VENV/bin/python -m pip install --quiet "${LOWEST[@]}" hypothesis pytest pytest-timeout pyyaml
$VENV/bin/python -m pip install --quiet --no-deps --editable .

if (($# == 0)); then
  set -- tests/torch_trace/commands tests/torch_trace/test_fault_list.py tests/torch_trace/rewrite/test_{merge,slim}.py \
    tests/torch_trace/reader/test_{reader_faults,workers}.py tests/torch_trace/files/test_writer.py \
    tests/analysis/run/test_{analyse,command,partials}.py tests/analysis/test_report.py tests/perfetto
fi
PYTHONPATH=$PWD exec $VENV/bin/python -m pytest -p no:cacheprovider "$@"
