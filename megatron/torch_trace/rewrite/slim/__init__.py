# SPDX-License-Identifier: Apache-2.0
"""`slim`: a smaller trace of what is asked for."""
