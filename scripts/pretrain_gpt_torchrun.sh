#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Pretrain GPT on one node, with traces: all its GPUs, or CPU processes where there are none.
#
#   scripts/pretrain_gpt_torchrun.sh
#   TP=2 PROFILE=0 scripts/pretrain_gpt_torchrun.sh --recompute-activations
#
# Arguments go to the training script, after those below, so they win.
set -euo pipefail

# ---- what to edit (or to set in the environment) ------------------------------------------------
SCRIPT=${SCRIPT:-pretrain_gpt.py} # this one or any other that trains with Megatron
PYTHON=${PYTHON:-python}          # .venv/bin/python after scripts/quickstart.sh
GPUS_PER_NODE=${GPUS_PER_NODE:-$(nvidia-smi -L 2>/dev/null | wc -l || true)}
RANKS_PER_NODE=${RANKS_PER_NODE:-$((GPUS_PER_NODE ? GPUS_PER_NODE : 2))}
OUTPUT=${OUTPUT:-$PWD/output}

if ((GPUS_PER_NODE == 0)); then
  # A dry run on the CPU, through in a minute.
  : "${NUM_LAYERS:=4}" "${HIDDEN_SIZE:=128}" "${NUM_HEADS:=4}" "${SEQ_LENGTH:=128}"
  : "${GLOBAL_BATCH_SIZE:=$((4 * RANKS_PER_NODE * ${SLURM_NNODES:-1}))}" "${VOCAB_SIZE:=1024}"
fi

MODEL_ARGS=(
  --num-layers "${NUM_LAYERS:-24}"
  --hidden-size "${HIDDEN_SIZE:-1024}"
  --num-attention-heads "${NUM_HEADS:-16}"
  --seq-length "${SEQ_LENGTH:-2048}"
  --max-position-embeddings "${SEQ_LENGTH:-2048}"
)

PARALLEL_ARGS=(
  --tensor-model-parallel-size "${TP:-1}"
  --pipeline-model-parallel-size "${PP:-1}"
  --context-parallel-size "${CP:-1}"
)

TRAINING_ARGS=(
  --micro-batch-size "${MICRO_BATCH_SIZE:-1}"
  --global-batch-size "${GLOBAL_BATCH_SIZE:-32}"
  --train-iters "${TRAIN_ITERS:-20}"
  --lr 3e-4
  --lr-decay-style cosine
  --log-interval 1
  --eval-interval 1000
  --eval-iters 0
  # On SIGTERM all ranks end together, after the iteration: none waits for one that is gone.
  --exit-signal-handler
  # --save "$OUTPUT/checkpoints" --load "$OUTPUT/checkpoints" --save-interval 500
)
((GPUS_PER_NODE == 0)) || TRAINING_ARGS+=(--bf16)

DATA_ARGS=(--tokenizer-type NullTokenizer --vocab-size "${VOCAB_SIZE:-50256}")
if [[ ${DATA_PATH:-} ]]; then # Megatron's .bin and .idx without the suffix
  DATA_ARGS+=(--data-path "$DATA_PATH" --split "98,1,1")
else
  DATA_ARGS+=(--mock-data)
fi

PROFILE_ARGS=(
  --torch-profile
  --torch-profile-ranks "${PROFILE_RANKS:-all}" # or 0-7, per-node, tp=0,dp=0: docs/flags.md
  --torch-profile-skip-first 5
  --torch-profile-wait 0
  --torch-profile-warmup 1
  --torch-profile-active 2
  --torch-profile-repeat 1
  # --torch-profile-record-shapes
  # --torch-profile-profile-memory
  # --torch-profile-with-stack # four times the size
  # --torch-profile-with-flops
  # --torch-profile-with-modules # the older name of -spans modules
  --torch-profile-spans phases modules
  --torch-profile-dir "$OUTPUT/traces"
)
((${PROFILE:-1})) || PROFILE_ARGS=()
# --------------------------------------------------------------------------------------------------

# Kernels start in the order they were launched, which the overlap of tensor and context parallelism
# counts on. With data parallelism alone remove the line: its overlap may come to nothing.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONUNBUFFERED=1
# Seconds that torchrun gives its ranks to save what they recorded before it kills them.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}

ON_CPU=()
((GPUS_PER_NODE)) || ON_CPU=(--cpu)

# exec: a signal to this script reaches torchrun, and not a shell that would swallow it.
exec "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$RANKS_PER_NODE" \
  -m megatron.torch_profile "${ON_CPU[@]}" "$SCRIPT" \
  "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" \
  "${PROFILE_ARGS[@]}" "$@"
