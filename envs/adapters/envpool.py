"""`envpool:Ant-v5`: the environments of EnvPool (arXiv 2206.10558), stepped in C++ on CPU threads.

Gymnasium's MuJoCo tasks, DeepMind Control, MuJoCo Playground, mjlab, MetaWorld, MyoSuite and others: whatever has
continuous actions. `python -c "import envpool; print(*envpool.list_all_envs())"` lists the ids.
"""

import ctypes
import sys
from fractions import Fraction

import torch

NO_OPENGL = ""
if sys.platform == "linux":
    # Before envpool is imported: its MuJoCo finds only an EGL loaded earlier, and without one drawing ends the process.
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        NO_OPENGL = f"no OpenGL for off-screen rendering; on Debian: apt-get install libegl1 ({error})"

import envpool  # noqa: E402

from envs.adapters.adapter import Adapter, check_actions, check_known, check_observations, flatten  # noqa: E402
from envs.threads import count_threads  # noqa: E402

# 1 / s, of Gymnasium's MuJoCo tasks, whose control period EnvPool does not say
FRAME_RATES = {
    "Ant": 20,
    "HalfCheetah": 20,
    "Hopper": 125,
    "Humanoid": Fraction(200, 3),
    "HumanoidStandup": Fraction(200, 3),
    "InvertedDoublePendulum": 20,
    "InvertedPendulum": 25,
    "Pusher": 20,
    "Reacher": 50,
    "Swimmer": 25,
    "Walker2d": 125,
}


class EnvPool(Adapter):
    """A pool with one environment per row, in EnvPool's synchronous mode.

    EnvPool would spend a whole step on each reset: the action is ignored, the reward 0. Here the environments that
    finished are reset by id right after the step, which leaves no such transition. Of Playground's observations the
    learner sees "state", of mjlab's "actor"; what only a critic gets is not used.
    """

    engine_name = "envpool"

    @staticmethod
    def check(name):
        """Raises ValueError (one line) where EnvPool has no `name`, or where the scripts cannot learn from it."""
        check_known(name, envpool.list_all_envs())
        try:
            spec = envpool.make_spec(name)
        except (ImportError, RuntimeError, ValueError) as error:  # a library or a file that the task needs is missing
            raise ValueError(str(error).splitlines()[0]) from error
        check_actions(spec.gymnasium_action_space)
        check_observations(spec.gymnasium_observation_space)
        if "camera" in getattr(spec.gymnasium_observation_space, "spaces", {}):  # mjlab's
            raise ValueError("its policy also observes camera, of which the scripts would see nothing")

    def __init__(self, name, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.pool = envpool.make_gymnasium(
            name,
            num_envs=num_envs,
            num_threads=min(count_threads(), num_envs),  # EnvPool would take all cores of the machine
            seed=self.seeds,  # from one seed EnvPool makes seed + i, so that runs with seeds 1 and 2 would start alike
            render_mode="rgb_array",
        )
        self.set_action_space(self.pool.action_space)
        self.max_episode_steps = self.pool.config["max_episode_steps"]
        task = name.rpartition("-")[0]  # without its version
        if task in FRAME_RATES:
            self.frame_rate = FRAME_RATES[task]
        elif self.pool.config.get("ctrl_dt"):  # s; only Playground's tasks say it
            self.frame_rate = round(1.0 / self.pool.config["ctrl_dt"])
        self.obs = self.tensor(flatten(self.pool.reset()[0], num_envs))
        self.num_obs = self.obs.shape[1]

    def reset_where(self, mask):
        ids = mask.nonzero().squeeze(1)
        if len(ids):
            obs, _ = self.pool.reset(ids.cpu().numpy())
            self.obs = self.obs.index_copy(0, ids, self.tensor(flatten(obs, len(ids))))

    def advance(self, action):
        obs, reward, terminated, truncated, _ = self.pool.step(self.scale(action))
        self.obs = self.tensor(flatten(obs, self.num_envs))
        return self.tensor(reward), self.tensor(terminated, torch.bool), self.tensor(truncated, torch.bool)

    def render(self, index):
        """Raises RuntimeError (one line) where there is no OpenGL, or where EnvPool does not draw this task."""
        if NO_OPENGL:
            raise RuntimeError(NO_OPENGL)
        return self.pool.render(index)[0]
