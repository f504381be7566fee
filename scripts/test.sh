#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must hold: format, lint, tests, types. Sets up all it needs in .venv and .wheels,
# and as root with apt-get.
#
#   scripts/test.sh                          everything
#   scripts/test.sh fast                     without the tests marked torchrun, slurm, browser or slow
#   scripts/test.sh tests/torch_trace        further arguments go to pytest
#
# Without further arguments the folders of tests/ are tested side by side, one more than there are
# cores, at most four at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
# The tests start hundreds of Pythons, and each would compile all modules again.
unset PYTHONDONTWRITEBYTECODE

if [[ ${1:-} != fast ]]; then
  install_test_programs &
fi
if (($# == 0)); then
  # Beside the installation below, which keeps one core busy. What fails here, the tests try again.
  make_venv
  .venv/bin/python tests/functional/wheels.py >/dev/null 2>&1 &
fi
install_into_venv train,view,agent,docs,dev
wait

.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/lint-imports
# Without a cache it keeps a core busy for half a minute: it fills its cache beside the tests.
.venv/bin/mypy >/dev/null 2>&1 &

# What takes longest begins first, but SLURM when torchrun's jobs are about to be done; other folders
# are found. Toy trainings wait more than they compute. A folder in another one is tested apart.
folders=(tests/{functional,toy_trainings,analysis,torch_trace,torch_profile,torch_profile/record,slurm,repository,hostile,report,view})
while read -r folder; do
  [[ " ${folders[*]} " == *" $folder "* ]] || folders+=("$folder")
done < <(find tests -name 'test_*.py' | cut -d/ -f1,2 | sort -u)
# Folders all of whose tests are left out (tests/conftest.py): to import them takes seconds.
LEFT_OUT=" tests/functional tests/toy_trainings tests/slurm tests/hostile "
if [[ $* == fast ]]; then
  for number in "${!folders[@]}"; do
    [[ $LEFT_OUT != *" ${folders[number]} "* ]] || unset "folders[number]"
  done
fi
FAST="not torchrun and not slurm and not browser and not slow"
tested=0
if (($# == 0)); then
  tests=(scripts/side_by_side.py "${folders[@]}")
elif [[ $* == fast ]]; then
  tests=(scripts/side_by_side.py "${folders[@]}" -- -m "$FAST")
elif [[ $1 == fast ]]; then
  tests=(-m pytest -m "$FAST" "${@:2}")
else
  tests=(-m pytest "$@")
fi
.venv/bin/python "${tests[@]}" || tested=$?
wait
.venv/bin/mypy
exit "$tested"
