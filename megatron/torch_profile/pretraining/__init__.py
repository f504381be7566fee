# SPDX-License-Identifier: Apache-2.0
"""What `pretrain_gpt.py` stands on: a GPT model and its data from Megatron's flags."""
