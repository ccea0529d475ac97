"""Does an environment keep the contract of envs/base.py? Asked once; later calls cost nothing."""

import torch

from envs import uncaught
from envs.base import VectorEnv

METHODS = "reset step state_dict load_state_dict".split()
HOOKS = "reset_where advance observe".split()  # of a subclass of VectorEnv
EPISODE = "done return length objective".split()


class ContractError(ValueError):
    """One line: what came, and what was expected."""


def check_first_calls(env, num_envs, refuse):
    """Check what `env` is, and what its first reset() and step() return; refuse(line) if that is wrong.

    An error raised in the code of a custom task is left as it is; one raised elsewhere because of it is refused too.
    """

    def attempt(what, function, *inputs):
        try:
            return function(*inputs)
        except ContractError as error:
            refuse(error)
        except Exception as error:
            custom = isinstance(env, uncaught.custom_class(uncaught.env_id))
            if not custom or uncaught.raised_in(error, uncaught.env_id):
                raise
            message = " ".join(str(error).split())[:300]
            refuse(f"{what} ends with {type(error).__name__}: {message}, must be as described in envs/base.py")

    def watch(name, check):
        method = getattr(env, name)

        def first_call(*inputs):
            setattr(env, name, method)
            result = attempt(f"{name}()", method, *inputs)
            attempt(f"{name}()", check, result)
            return result

        attempt(f"replacing {name}", setattr, env, name, first_call)

    attempt("the environment", check_attributes, env, num_envs)
    for name in METHODS if ":" in uncaught.env_id else ():
        attempt(f"replacing {name}", setattr, env, name, uncaught.without_exit(getattr(env, name)))
    watch("reset", lambda obs: check_tensor("the observation of reset()", obs, env, num_envs, env.num_obs))
    watch("step", lambda result: check_step(result, env, num_envs))
    if type(env).step is VectorEnv.step:
        watch("advance", lambda result: check_advance(result, env, num_envs))


def require(right, name, came, wanted):
    if not right:
        raise ContractError(f"{name} is {came}, must be {wanted}")


def check_attributes(env, num_envs):
    for name in METHODS:
        require(callable(getattr(env, name, None)), f"the method {name}", "missing", "there; see envs/base.py")
    numbers = ["num_envs", "num_obs", "num_actions"]
    if type(env).step is VectorEnv.step:
        numbers.append("max_episode_steps")
        for name in HOOKS:
            own = getattr(type(env), name) is not getattr(VectorEnv, name)
            require(own, f"the method {name}", "missing", "there; see envs/base.py")
    for name in numbers:
        value = getattr(env, name, None)
        number = isinstance(value, int) and not isinstance(value, bool)
        require(number and value >= 1, name, repr(value), "an integer, at least 1")
    require(env.num_envs == num_envs, "num_envs", env.num_envs, num_envs)
    curriculum = getattr(env, "curriculum", ())
    names = isinstance(curriculum, tuple) and all(isinstance(getattr(env, x, None), torch.Tensor) for x in curriculum)
    require(names, "curriculum", repr(curriculum), "a tuple of names of tensors")
    device = getattr(env, "device", None)
    require(isinstance(device, (str, torch.device)), "device", repr(device), "a torch.device or the name of one")


def check_tensor(name, value, env, *shape, dtype=None, finite=True):
    """Raises ContractError unless `value` is a tensor of this shape and dtype (None: float32) on the env's device."""
    device = torch.zeros(0, device=env.device).device  # cuda is cuda:0
    dtype = dtype or torch.get_default_dtype()
    wanted = f"a {dtype} tensor of shape {shape} on {device}"
    require(isinstance(value, torch.Tensor), name, f"a {type(value).__name__}", wanted)
    came = f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    require(came == wanted, name, came, wanted)
    require(value.layout is torch.strided and not value.requires_grad, name, "sparse or requires grad", wanted)
    require(not finite or value.isfinite().all(), name, "not finite", "finite")


def check_keys(name, value, keys):
    wanted = f"a dict with {', '.join(keys)}" if keys else "a dict"
    require(isinstance(value, dict), name, f"a {type(value).__name__}", wanted)
    missing = [key for key in keys if key not in value]
    require(not missing, name, f"without {', '.join(missing)}", wanted)


def check_tuple(name, value, *parts):
    wanted = f"a tuple ({', '.join(parts)})"
    require(isinstance(value, tuple), name, f"a {type(value).__name__}", wanted)
    require(len(value) == len(parts), name, f"a tuple of {len(value)}", wanted)


def check_advance(result, env, num_envs):
    """Raises ContractError unless `result` is what advance() has to return."""
    check_tuple("the result of advance()", result, "reward", "terminated", "truncated")
    for name, value, dtype in zip(("reward", "terminated", "truncated"), result, (None, torch.bool, torch.bool)):
        check_tensor(name, value, env, num_envs, dtype=dtype)


def check_step(result, env, num_envs):
    """Raises ContractError unless `result` is what step() has to return."""
    check_tuple("the result of step()", result, "obs", "reward", "terminated", "truncated", "info")
    obs, reward, terminated, truncated, info = result
    check_tensor("the observation of step()", obs, env, num_envs, env.num_obs)
    check_advance((reward, terminated, truncated), env, num_envs)
    require(not (terminated & truncated).any(), "an episode", "both terminated and truncated", "at most one of the two")
    check_keys("info", info, ("final_obs", "episode", "metrics"))
    check_tensor('info["final_obs"]', info["final_obs"], env, num_envs, env.num_obs)
    check_keys('info["episode"]', info["episode"], EPISODE)
    for key in EPISODE:  # valid where done
        dtype = torch.bool if key == "done" else None
        check_tensor(f'info["episode"]["{key}"]', info["episode"][key], env, num_envs, dtype=dtype, finite=False)
    running = ~(terminated | truncated)
    early = (info["episode"]["done"] & running).any()
    require(not early, 'info["episode"]["done"]', "true in running episodes", "false")
    check_keys('info["metrics"]', info["metrics"], ())
    for key, value in info["metrics"].items():
        number = isinstance(value, float) or isinstance(value, int) and abs(value) < 2**63
        if isinstance(value, torch.Tensor):
            number = value.numel() == 1 and not value.is_complex() and not value.is_meta
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
        wanted = "a number or a 0-d tensor"
        require(number, f'info["metrics"]["{key}"]', f"a {type(value).__name__}{shape}", wanted)
