"""Adam without torch's compiler."""

import subprocess
import sys

import torch

from lacova.nn.adam import Adam

OPTIONS = {"lr": 0.1, "weight_decay": 0.3, "fused": True}


def _steps(kind, count, state=None, start=(1.0, -2.0)):
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimiser = kind([{"params": [parameter], "lr": 0.2}], **OPTIONS)
    if state is not None:
        optimiser.load_state_dict(state)
    for _ in range(count):
        optimiser.zero_grad(set_to_none=True)
        parameter.square().sum().backward()
        optimiser.step()
    return parameter, optimiser


def test_steps_and_states_are_those_of_torch():
    ours, optimiser = _steps(Adam, 5)
    theirs, expected = _steps(torch.optim.AdamW, 5)
    assert torch.equal(ours, theirs)
    assert ours.requires_grad
    assert ours.grad_fn is None
    state, other = optimiser.state_dict(), expected.state_dict()
    assert state["param_groups"] == other["param_groups"]
    assert all(torch.equal(value, other["state"][0][name]) for name, value in state["state"][0].items())
    onward = [_steps(Adam, 3, s, ours.tolist())[0] for s in (state, other)]
    assert torch.equal(onward[0], onward[1])
    assert torch.equal(onward[0], _steps(torch.optim.AdamW, 8)[0])


def test_the_compiler_is_not_imported():
    program = """
import sys, torch
from lacova.nn.adam import Adam
parameter = torch.nn.Parameter(torch.ones(2))
optimiser = Adam([parameter], lr=0.1, fused=True)
parameter.sum().backward()
optimiser.step()
optimiser.zero_grad()
optimiser.load_state_dict(optimiser.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
