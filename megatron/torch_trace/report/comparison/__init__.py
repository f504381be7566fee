# SPDX-License-Identifier: Apache-2.0
"""Two runs compared: the answer in words, and the tables as text, page and JSON."""
