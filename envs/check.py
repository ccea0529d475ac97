"""Does an environment keep the contract of envs/base.py? `python -m envs.check reach:Reach`."""

import io
import pickle
import re
import sys

import envs  # before torch: Isaac Gym must be imported first
from envs.base import is_constant
from envs.terminal import needs_output, plus_minus

import torch


NUM_ENVS = 17  # no robot has as many joints, so that one number per joint is not taken for one per environment


class ContractError(Exception):
    """An environment breaks the contract of envs/base.py."""


def require(kept, problem):
    """Raises ContractError(problem) unless `kept`; an assert would vanish under `python -O`."""
    if not kept:
        raise ContractError(problem)


def check_env(env, num_steps):
    """Play random actions. Returns rewards (num_steps, N) and the number of finished episodes.

    Raises ContractError (one line) for the first violation of the contract.
    """
    require(env.num_obs > 0, "num_obs must be at least 1")
    require(env.num_actions > 0, "num_actions must be at least 1")
    rewards = []
    finished = 0
    constants = {name: value.clone() for name, value in vars(env).items() if is_constant(value)}
    check_tensor("the observation of reset()", env.reset(), env, env.num_obs)
    for action in random_actions(env, num_steps):
        given = action.clone()
        obs, reward, terminated, truncated, info = env.step(action)
        episode = info["episode"]
        ended = terminated | truncated
        require(torch.equal(action, given), "step() changes the action that it is given")
        check_tensor("the observation of step()", obs, env, env.num_obs)
        # where an episode has terminated the final observation has no value that anybody needs, so it may be NaN
        final_obs = info["final_obs"].masked_fill(terminated[:, None], 0.0)
        check_tensor('info["final_obs"]', final_obs, env, env.num_obs)
        for name, value in dict(episode, reward=reward, terminated=terminated, truncated=truncated).items():
            boolean = name in ("terminated", "truncated", "done")
            check_tensor(name, value, env, dtype=torch.bool if boolean else torch.float32)
        require(not (terminated & truncated).any(), "an episode is both terminated and truncated")
        require(not (episode["done"] & ~ended).any(), 'info["episode"]["done"] is true in a running episode')
        same = torch.equal(obs[~ended], info["final_obs"][~ended])
        require(same, "final_obs differs from obs in a running episode")
        rewards.append(reward.clone())
        finished += episode["done"].sum().item()
    for name, value in constants.items():
        unchanged = torch.equal(getattr(env, name), value)
        require(unchanged, f"{name} changes, but is a constant, which is not saved")
    return torch.stack(rewards), finished


def check_state(env):
    """Raises ContractError where a reset touches running episodes, or a state cannot be saved or restored exactly."""
    mask = torch.arange(env.num_envs, device=env.device) % 2 == 0
    before = env.reset().clone()
    env.reset_where(mask)
    untouched = torch.equal(env.observe()[~mask], before[~mask])
    require(untouched, "reset_where() changes environments outside of its mask")
    state = env.state_dict()
    actions = random_actions(env, 20)
    first = [step_results(env, action) for action in actions]
    for name in env.state_dict().keys() - state.keys():
        raise ContractError(f"{name} is created in step(), where a resumed run does not have it yet")
    unreadable = find_unreadable(state)
    require(not unreadable, f"state_dict() holds a {unreadable}, which cannot be read from a checkpoint")
    env.load_state_dict(state)
    same = all(torch.equal(step_results(env, action), results) for action, results in zip(actions, first))
    require(same, "state_dict() is not all of the state: keep it in attributes that are tensors or have a state_dict()")


def find_unreadable(state):
    """The type in `state` with which a checkpoint could be written but not read, as a name; None: there is none.

    Checkpoints are read without running code that they hold, so that numpy arrays, for example, are refused.
    """
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        return refused_type(error) or str(error)
    return None


def refused_type(error):
    """The name of the type for which torch.load raised `error`; None: it raised it for another reason."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return found[1] if found else None


def step_results(env, action):
    """What a step returns, side by side: observation, reward, ends and objective (N, D + 4)."""
    obs, reward, terminated, truncated, info = env.step(action)
    return torch.cat([obs, torch.stack([reward, terminated, truncated, info["episode"]["objective"]], 1)], 1)


def may_be_constants(env):
    """Names of tensors that checkpoints hold although they are neither one number nor a row for each environment."""
    tensors = {name: value for name, value in env.state_dict().items() if isinstance(value, torch.Tensor)}
    del tensors["generator"]
    return [name for name, value in tensors.items() if value.ndim > 0 and len(value) != env.num_envs]


def random_actions(env, num_steps):
    return 2.0 * torch.rand(num_steps, env.num_envs, env.num_actions, device=env.device) - 1.0


def check_tensor(name, value, env, *shape, dtype=torch.float32):
    """Raises ContractError unless `value` is finite and has the type `dtype` and the shape (N, *shape)."""
    found = (value.dtype, tuple(value.shape))
    wanted = (dtype, (env.num_envs, *shape))
    require(found == wanted, f"{name} is ({found[0]}, {found[1]}), not {wanted}")
    require(value.isfinite().all(), f"{name} is not finite")


@needs_output()
def main(env_id):
    """Check a task and print what was found; ends with exit status 1 and one line where it breaks the contract."""
    try:
        envs.check_env_id(env_id)
    except ValueError as error:
        sys.exit(f"{env_id}: {error}")
    try:
        env = envs.make(env_id, NUM_ENVS)
        if isinstance(env, envs.VectorEnv) and env.resumes_exactly:
            check_state(env)
            for name in may_be_constants(env):
                print(
                    f"{name} is saved in checkpoints. If it never changes, create it with constant(): then it is not."
                )
        rewards, finished = check_env(env, 1_000)
    except (ContractError, envs.UnsupportedError) as error:
        sys.exit(f"{env_id}: {error}")
    reward = f"{rewards.mean():.3g} {plus_minus()} {rewards.std():.3g}"
    print(f"{env_id}: keeps the contract, {finished} episodes, reward {reward}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m envs.check TASK, for example reach:Reach")
    main(sys.argv[1])
