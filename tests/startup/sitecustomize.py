# SPDX-License-Identifier: Apache-2.0
"""On the path of every training that a test starts: Python imports this first.

The imports of torch and Megatron make a million objects and no garbage. To look for some in between
takes a fifth of the time of a training of a few iterations.
"""

import gc

gc.set_threshold(50_000, 20, 100)
