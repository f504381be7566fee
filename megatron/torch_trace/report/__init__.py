# SPDX-License-Identifier: Apache-2.0
"""Renders what `analysis` returns; computes nothing.

tables          the model: tables, columns, rows and cells, and what shows them
section         a section: what it is made from, and what it holds
sections        one module a section, written once for all renderers
contents        the sections in their order: a new section is a module and a line there
table, text     a table and the whole report on a terminal
html            the page                           markdown  the same tables for an issue or a wiki
sentences       what every report says in words
json_document   `--json`, schema 1
"""
