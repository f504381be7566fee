# SPDX-License-Identifier: Apache-2.0
"""The answer as table, JSON and page, with the table model of the reports; computes nothing.

tables      the tables     text    on a terminal     document    --json
page        one HTML page  sentences    what is said in words
conditions  --fail-if
"""
