# SPDX-License-Identifier: Apache-2.0
"""From blocks of events to columns in integer nanoseconds."""
