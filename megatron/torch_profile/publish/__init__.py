# SPDX-License-Identifier: Apache-2.0
"""Where numbers and windows are shown: W&B, TensorBoard, JSONL."""
