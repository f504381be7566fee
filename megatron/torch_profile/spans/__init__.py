# SPDX-License-Identifier: Apache-2.0
"""What gets a name in the trace: modules, their backward, phases, sections."""
