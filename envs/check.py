"""Does an environment keep the contract of envs/base.py? `python -m envs.check reach:Reach`."""

import sys

import envs  # before torch: Isaac Gym must be imported first
from envs.base import is_constant

import torch


def check_env(env, num_steps):
    """Play random actions; AssertionError says what is wrong. Returns rewards (num_steps, N), number of episodes."""
    rewards, finished = [], 0
    constants = {name: value.clone() for name, value in vars(env).items() if is_constant(value)}
    check_tensor("the observation of reset()", env.reset(), env, env.num_obs)
    for action in random_actions(env, num_steps):
        given = action.clone()
        obs, reward, terminated, truncated, info = env.step(action)
        episode, ended = info["episode"], terminated | truncated
        assert torch.equal(action, given), "step() changes the action that it is given"
        check_tensor("the observation of step()", obs, env, env.num_obs)
        check_tensor('info["final_obs"]', info["final_obs"], env, env.num_obs)
        for name, value in dict(episode, reward=reward, terminated=terminated, truncated=truncated).items():
            boolean = name in ("terminated", "truncated", "done")
            check_tensor(name, value, env, dtype=torch.bool if boolean else torch.float32)
        assert not (terminated & truncated).any(), "an episode is both terminated and truncated"
        assert not (episode["done"] & ~ended).any(), 'info["episode"]["done"] is true in a running episode'
        assert torch.equal(obs[~ended], info["final_obs"][~ended]), "final_obs differs from obs in a running episode"
        rewards.append(reward.clone())
        finished += episode["done"].sum().item()
    for name, value in constants.items():
        assert torch.equal(getattr(env, name), value), f"{name} changes, but is a constant, which is not saved"
    return torch.stack(rewards), finished


def check_state(env):
    """Raises AssertionError where a reset touches running episodes, or a restored state goes on differently."""
    mask, before = torch.arange(env.num_envs, device=env.device) % 2 == 0, env.reset().clone()
    env.reset_where(mask)
    assert torch.equal(env.observe()[~mask], before[~mask]), "reset_where() changes environments outside of its mask"
    state, actions = env.state_dict(), random_actions(env, 20)
    first = [env.step(action)[0].clone() for action in actions]
    env.load_state_dict(state)
    same = all(torch.equal(env.step(action)[0], obs) for action, obs in zip(actions, first))
    assert same, "state_dict() is not all of the state: keep it in attributes that are tensors or have a state_dict()"


def may_be_constants(env):
    """Names of tensors that checkpoints hold although they are neither one number nor a row for each environment."""
    tensors = {name: value for name, value in env.state_dict().items() if isinstance(value, torch.Tensor)}
    del tensors["generator"]
    return [name for name, value in tensors.items() if value.ndim > 0 and len(value) != env.num_envs]


def random_actions(env, num_steps):
    return 2.0 * torch.rand(num_steps, env.num_envs, env.num_actions, device=env.device) - 1.0


def check_tensor(name, value, env, *shape, dtype=torch.float32):
    wanted = (dtype, (env.num_envs, *shape))
    assert (value.dtype, tuple(value.shape)) == wanted, f"{name} is ({value.dtype}, {tuple(value.shape)}), not {wanted}"
    assert value.isfinite().all(), f"{name} is not finite"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m envs.check TASK, for example reach:Reach")
    try:
        envs.check_env_id(sys.argv[1])
    except ValueError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    env = envs.make(sys.argv[1], 16)
    if isinstance(env, envs.VectorEnv) and env.resumes_exactly:
        check_state(env)
        for name in may_be_constants(env):
            print(f"{name} is saved in checkpoints. If it never changes, create it with constant(): then it is not.")
    rewards, finished = check_env(env, 1_000)
    print(f"{sys.argv[1]}: keeps the contract, {finished} episodes, reward {rewards.mean():.3g} ± {rewards.std():.3g}")
