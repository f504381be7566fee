# SPDX-License-Identifier: Apache-2.0
"""The CPU side: causes of idle time, the data loader, Python functions, calls by name and stack."""
