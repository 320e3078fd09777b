"""Adam without torch's compiler.

Methods of torch's optimisers import `torch._dynamo` when they are first called, in case somebody compiles them. That
takes about a second, a fifth of the time of a fit to a small study.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import AdamW


class Adam(AdamW):
    """`torch.optim.AdamW` with the same numbers and states; its step cannot be compiled."""

    add_param_group = unwrap(AdamW.add_param_group)
    zero_grad = unwrap(AdamW.zero_grad)
    state_dict = unwrap(AdamW.state_dict)
    load_state_dict = unwrap(AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(AdamW.step))
