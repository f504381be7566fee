# SPDX-License-Identifier: Apache-2.0
"""From paths to the whole answer: ranks in parallel, analyses kept beside traces."""
