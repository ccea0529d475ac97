"""What tests of the algorithms share."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

pytest.register_assert_rewrite(*(f"tests.algorithms.{name}" for name in ("minibatches", "reference_loss", "runs")))


@pytest.fixture
def gradients():
    """The gradient (P,) of each step of an optimizer since the beginning of the test, as the step takes it."""
    seen = []

    def look(optimizer, args, kwargs):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen.append(torch.cat([p.grad.flatten() for p in parameters]))

    handle = register_optimizer_step_pre_hook(look)
    yield seen
    handle.remove()
