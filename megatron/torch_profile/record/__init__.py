# SPDX-License-Identifier: Apache-2.0
"""From one training run to recorded windows: the session, the recorder, torch's profiler."""
