# SPDX-License-Identifier: Apache-2.0
"""What a trace recorded of the GPU, and whether it can be believed: one answer for every command.

captured_launches  such launches in words
captures     launches into a graph being captured, which run nothing yet
clock        GPU rows on another clock than the CPU's
duplicates   GPU rows that are there more than once
judgement    why utilisation is unknown, if it is
ledger       the rows that the judgement needs, block by block, in bounded memory
restarts     step numbers that come again
"""
