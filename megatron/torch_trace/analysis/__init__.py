# SPDX-License-Identifier: Apache-2.0
"""Where the time of an iteration went. Computes and returns; `report` renders.

run              from paths to the whole answer
compare          two analyses side by side         findings   what to do about it, one module each
replay           what an iteration would take after a change
results          what is returned, and what is computed over all ranks from it
schedule         phases, micro-batches, the pipeline's bubble
modules          by module and class               host       the CPU side: who launches, who waits
communication    collectives, clocks, stragglers
gpu_work         kernels, operators, FLOPs, MFU
timeline         one rank: launches, window, classes of GPU work, steps

A folder imports only from those below it; folders in one line do not import each other.
"""
