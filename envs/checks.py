"""Does an environment keep the contract of envs/base.py? Asked once; later calls cost nothing."""

import torch

METHODS = "reset step state_dict load_state_dict".split()
EPISODE = "done return length objective".split()


def check_first_calls(env, num_envs, refuse):
    """Check what `env` is, and what its first reset() and step() return; refuse(line) if that is wrong."""

    def check(checked, *inputs):
        try:
            checked(*inputs)
        except ValueError as error:
            refuse(error)

    def first_reset():
        env.reset = reset
        obs = reset()
        check(check_tensor, "the observation of reset()", obs, env, num_envs, env.num_obs)
        return obs

    def first_step(action):
        env.step = step
        result = step(action)
        check(check_step, result, env, num_envs)
        return result

    check(check_attributes, env, num_envs)
    reset, step = env.reset, env.step
    env.reset, env.step = first_reset, first_step


def require(right, name, came, wanted):
    if not right:
        raise ValueError(f"{name} is {came}, must be {wanted}")


def check_attributes(env, num_envs):
    for name in METHODS:
        require(callable(getattr(env, name, None)), f"the method {name}", "missing", "there; see envs/base.py")
    for name in ("num_envs", "num_obs", "num_actions"):
        value = getattr(env, name, None)
        require(isinstance(value, int) and value >= 1, name, repr(value), "an integer, at least 1")
    require(env.num_envs == num_envs, "num_envs", env.num_envs, num_envs)


def check_tensor(name, value, env, *shape, dtype=None, finite=True):
    """Raises ValueError unless `value` is a tensor of this shape and dtype (None: float32) on the device of `env`."""
    device = torch.zeros(0, device=env.device).device  # cuda is cuda:0
    dtype = dtype or torch.get_default_dtype()
    wanted = f"a {dtype} tensor of shape {shape} on {device}"
    require(isinstance(value, torch.Tensor), name, f"a {type(value).__name__}", wanted)
    came = f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    require(came == wanted, name, came, wanted)
    require(not finite or value.isfinite().all(), name, "not finite", "finite")


def check_keys(name, value, keys):
    require(isinstance(value, dict), name, f"a {type(value).__name__}", f"a dict with {', '.join(keys)}")
    missing = [key for key in keys if key not in value]
    require(not missing, name, f"without {', '.join(missing)}", f"a dict with {', '.join(keys)}")


def check_step(result, env, num_envs):
    """Raises ValueError (one line) unless `result` is what step() has to return."""
    wanted = "a tuple (obs, reward, terminated, truncated, info)"
    require(isinstance(result, tuple), "the result of step()", f"a {type(result).__name__}", wanted)
    require(len(result) == 5, "the result of step()", f"a tuple of {len(result)}", wanted)
    obs, reward, terminated, truncated, info = result
    check_tensor("the observation of step()", obs, env, num_envs, env.num_obs)
    check_tensor("reward", reward, env, num_envs)
    check_tensor("terminated", terminated, env, num_envs, dtype=torch.bool)
    check_tensor("truncated", truncated, env, num_envs, dtype=torch.bool)
    require(not (terminated & truncated).any(), "an episode", "both terminated and truncated", "at most one of the two")
    check_keys("info", info, ("final_obs", "episode", "metrics"))
    check_tensor('info["final_obs"]', info["final_obs"], env, num_envs, env.num_obs)
    check_keys('info["episode"]', info["episode"], EPISODE)
    for key in EPISODE:  # valid where done
        dtype = torch.bool if key == "done" else None
        check_tensor(f'info["episode"]["{key}"]', info["episode"][key], env, num_envs, dtype=dtype, finite=False)
    check_keys('info["metrics"]', info["metrics"], ())
    for key, value in info["metrics"].items():
        number = isinstance(value, (int, float)) or isinstance(value, torch.Tensor) and value.numel() == 1
        require(number, f'info["metrics"]["{key}"]', f"a {type(value).__name__}", "a number or a 0-d tensor")
