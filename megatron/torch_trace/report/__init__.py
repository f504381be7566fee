# SPDX-License-Identifier: Apache-2.0
"""Renders what `analysis` returns; computes nothing.

table           aligned columns of a given width
text            the report on a terminal           sections, work   its parts
sentences       what every report says in words
json_document   `--json`, schema 1
"""
