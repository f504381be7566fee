# SPDX-License-Identifier: Apache-2.0
"""Where the time of an iteration went. Computes and returns; `report` renders.

intervals      exact sets of intervals             activity, block_columns   a trace as columns
nesting        what encloses a point in time       launches                  who launched what
steps          window and steps                    timeline                  launch and class of work
breakdown      compute, exposed, idle              names, dimensions         classes and families
collectives    what each call was                  communication, bandwidth  by dimension
kernels        by kernel, operator, shape          host, loader, python_frames  the CPU side
modules        by module and class                 phases, microbatches      by phase of the loop
span_names     modules, phases, micro-batches      pipeline                  bubble by stage
matching       the same call on other ranks        clocks, stragglers        who is late
mfu            utilisation of the model's FLOPs    findings                  what to do about it
rank, pool     one rank; all of them in parallel   analyse, results, summary the whole answer
frames         the same as polars frames
"""
