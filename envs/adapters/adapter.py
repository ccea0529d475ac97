"""What the adapters to other people's environments share: ids, bounded actions, flat observations, resuming."""

import difflib

import numpy as np
import torch

from envs.base import UnsupportedError, VectorEnv

UNBOUNDED = 1e30  # bounds of actions from here on stand for no bounds: Gymnasium's Box writes some as 3.4e38
# Of a dict of observations, the entry that a policy sees: Playground calls it "state", mjlab "actor".
POLICY_OBSERVATIONS = ("state", "actor")


def check_known(name, known, hint=""):
    """Raises ValueError (one line) where `name` is none of `known`, with the nearest one and a further hint."""
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise ValueError(f"unknown, did you mean {nearest[0]}?{hint}" if nearest else f"unknown{hint}")


def is_bounded(bounds):
    """Where an array of bounds of actions holds one: no infinity, nor a number that stands for it."""
    return np.abs(bounds) < UNBOUNDED


def check_actions(space):
    """Raises UnsupportedError (one line) where a Gymnasium space of actions is no Box of reals, all bounded or none."""
    if not (hasattr(space, "low") and np.issubdtype(space.dtype, np.floating)):
        raise UnsupportedError(f"actions must be a Box of floating-point numbers, this has {space}")
    bounded = is_bounded([space.low, space.high])
    if bounded.any() and not bounded.all():
        raise UnsupportedError(f"either all actions must have finite bounds or none, this has {space}")


def check_observations(space):
    """Raises UnsupportedError (one line) where a Gymnasium space of observations has images or texts for the policy.

    An image has two dimensions of 8-bit numbers, or three or more dimensions of whatever numbers. Flattened, it and a
    text are numbers from which no MLP learns. What else a dict holds than the entry of POLICY_OBSERVATIONS does not
    matter.
    """
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        chosen = [parts[name] for name in POLICY_OBSERVATIONS if name in parts]
        parts = chosen[:1] or parts.values()
    for part in parts or ():
        check_observations(part)
    if hasattr(space, "character_set"):
        raise UnsupportedError(f"observations must be numbers, this has the text {space}")
    dimensions = len(space.shape or ())  # a sequence or a graph has no shape
    if dimensions > 2 or (dimensions == 2 and space.dtype == np.uint8):
        raise UnsupportedError(
            f"observations must not be images, this has {type(space).__name__}{space.shape}: flatten in a wrapper what"
            " is no image"
        )


def check_only_simulation(simulator, simulations, key):
    """Raises UnsupportedError (one line) if this process has a simulation other than that of `key`.

    simulations: (task, number of environments, device) -> the simulation; at most one.
    """
    if simulations and key not in simulations:
        task, num_envs, _ = next(iter(simulations))
        there = f"{num_envs:,} environments of {task}"
        raise UnsupportedError(f"{simulator} holds one simulation per process, and there is one: {there}")


def flatten(obs, num_envs):
    """Observations (N, D) float32, numpy. Of a dict the entry of POLICY_OBSERVATIONS, else all entries in order."""
    if not isinstance(obs, dict):
        return np.reshape(obs, (num_envs, -1)).astype(np.float32)
    for name in POLICY_OBSERVATIONS:
        if name in obs:
            return flatten(obs[name], num_envs)
    return np.concatenate([flatten(entry, num_envs) for entry in obs.values()], axis=1)


class Adapter(VectorEnv):
    """Somebody else's environments. Their state cannot be read, so a resumed run begins its episodes anew.

    One that is chosen by a prefix, `engine_name:`, has `check(name)`, which raises ValueError (one line) for unknown
    names.
    """

    resumes_exactly = False

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.seeds = torch.randint(2**31 - 1, (num_envs,), generator=self.generator, device=self.device).tolist()

    def set_action_space(self, space):
        """Actions are scaled from [-1, 1] to the bounds of `space`, a Gymnasium Box; without bounds they stay there."""
        self.action_space = space
        self.num_actions = int(np.prod(space.shape))
        low = space.low.reshape(-1).astype(np.float64)
        high = space.high.reshape(-1).astype(np.float64)
        self.low = torch.as_tensor(np.where(is_bounded(low), low, -1.0)).to(self.device)  # (U,) float64
        self.high = torch.as_tensor(np.where(is_bounded(high), high, 1.0)).to(self.device)  # (U,) float64

    def to_bounds(self, action):
        """Actions (N, U) in [-1, 1] within the bounds of the Box, float64; -1 and 1 give its bounds exactly."""
        return torch.lerp(self.low, self.high, 0.5 * (action.double() + 1.0))

    def scale(self, action):
        """`to_bounds` as a numpy array (N, *shape) of the Box's type."""
        scaled = self.to_bounds(action).cpu().numpy()
        return scaled.astype(self.action_space.dtype).reshape(self.num_envs, *self.action_space.shape)

    def tensor(self, array, dtype=torch.float32):
        """`array` as a tensor on the environment's device."""
        return torch.as_tensor(array).to(self.device, dtype)

    def observe(self):
        return self.obs

    def state_dict(self):
        """The curriculum, if there is one."""
        return {name: getattr(self, name).clone() for name in self.curriculum}

    def load_state_dict(self, state):
        """Restore the curriculum and begin all episodes anew, unless they just have: scripts hold that observation."""
        for name in self.curriculum:
            getattr(self, name).copy_(state[name])
        if self.episode_length.any():
            self.reset()
