# SPDX-License-Identifier: Apache-2.0
"""Every name of Megatron that is wrapped, and the flags in Megatron's own parser."""
