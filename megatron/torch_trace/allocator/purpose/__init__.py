# SPDX-License-Identifier: Apache-2.0
"""What memory is for: told by call stacks, by what the training says, and by neither of them."""
