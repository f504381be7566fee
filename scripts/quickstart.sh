#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install, train a small GPT on Megatron's own training loop, and leave traces of it.
#
#   scripts/quickstart.sh                                    all GPUs, or two CPU processes
#   scripts/quickstart.sh --torch-profile-with-stack         further arguments go to pretrain_gpt.py
#   NPROC=4 scripts/quickstart.sh --tensor-model-parallel-size 2
#   PYTHON=/opt/python3.12/bin/python scripts/quickstart.sh
#
# Everything it makes lies in .venv/ and quickstart/.
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '3,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

install_into_venv train,view

DATA=quickstart/python_sources
[[ -f ${DATA}_document.idx ]] || .venv/bin/python tools/prepare_text.py "$DATA"

GPUS=$(.venv/bin/python -c 'import torch; print(torch.cuda.device_count())')
NPROC=${NPROC:-$((GPUS > 0 ? GPUS : 2))}

if ((GPUS > 0)); then
  MODEL_ARGS=(--num-layers 12 --hidden-size 768 --num-attention-heads 12
    --seq-length 1024 --max-position-embeddings 1024 --bf16)
else
  MODEL_ARGS=(--num-layers 4 --hidden-size 128 --num-attention-heads 4
    --seq-length 128 --max-position-embeddings 128)
fi

TRAINING_ARGS=(
  --micro-batch-size 2
  --global-batch-size $((8 * NPROC))
  --train-iters 16
  --lr 3e-4
  --lr-decay-style cosine
  --log-interval 1
  --eval-iters 0
  --eval-interval 1000
)

DATA_ARGS=(
  --data-path "${DATA}_document"
  --data-cache-path quickstart/cache
  --split "98,1,1"
  --tokenizer-type NullTokenizer
  --vocab-size 257
)

PROFILE_ARGS=(
  --torch-profile
  --torch-profile-ranks all
  --torch-profile-skip-first 6
  --torch-profile-active 2
  --torch-profile-spans phases modules
  --torch-profile-dir quickstart/traces
)

export CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Megatron warns of every optional library that is not there; a first look needs none of it.
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}

set +e
.venv/bin/torchrun --standalone --nproc-per-node "$NPROC" pretrain_gpt.py \
  "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "${PROFILE_ARGS[@]}" "$@" \
  2>&1 | tee quickstart/train.log |
  grep --line-buffered -E '^\[torch-profile |^torch-profile: error| iteration +[0-9]+/'
STATUS=${PIPESTATUS[0]}
set -e
if ((STATUS)); then
  # The first error of a rank; what torchrun says of it comes later and tells less.
  grep -v ChildFailedError quickstart/train.log |
    grep -m 1 -E '^(\[rank[0-9]+\]: *)?([A-Za-z_.]+Error|[a-z_]+\.py: error)\b' >&2 || true
  echo "Training failed (exit status $STATUS); its whole output is in quickstart/train.log." >&2
  exit "$STATUS"
fi

# The log says where the traces went: another --torch-profile-dir may have been given.
RUN=$(sed -n 's/^\[torch-profile plan\] traces: //p' quickstart/train.log | tail -n 1)
if [[ ! -d $RUN ]]; then
  echo "Training left no traces; its whole output is in quickstart/train.log." >&2
  exit 1
fi
echo
echo "Traces of this run (whole log: quickstart/train.log):"
find "$RUN" -type f -printf '  %p  %k KiB\n' | sort
echo
WINDOW=$(find "$RUN" -maxdepth 1 -name 'iter-*' | sort | tail -n 1)
echo "Look at them:"
echo "  .venv/bin/torch-trace analyze $WINDOW"
echo "  .venv/bin/torch-trace view $WINDOW"
echo "  .venv/bin/torch-trace info $WINDOW"
