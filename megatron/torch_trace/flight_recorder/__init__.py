# SPDX-License-Identifier: Apache-2.0
"""Why a job hangs: torch's flight recorders of all ranks, joined."""
