# SPDX-License-Identifier: Apache-2.0
"""The graph of spans: forwards and backwards of micro-batches on the stages of a pipeline.

`orders` says what each stage does after what, `passes` how long it takes, measured `from_transfers`
or `from_spans`; `simulation` finds when it is done, `alterations` makes other passes of these, and
`span_replay` answers.
"""
