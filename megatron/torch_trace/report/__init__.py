# SPDX-License-Identifier: Apache-2.0
"""Renders what `analysis` returns; computes nothing.

tables          the model: sections of tables, columns, rows and cells
sections        what a report holds, one module a section, written once for all renderers
table, text     a table and the whole report on a terminal
html            the page                           markdown  the same tables for an issue or a wiki
sentences       what every report says in words
json_document   `--json`, schema 1
"""
