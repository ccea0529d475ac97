"""What does a policy do with the object? `python -m benchmarks.scripts.holding policies/AllegroKukaRegrasping`.

Plays one whole episode in each of --episodes environments of an AllegroKuka task, with sampled and with mean actions,
and prints Markdown tables of episodes' shares and of the reward's terms.

    reached   a fingertip point within 2 cm of the object's surface (the points lie 9 to 14 mm in front of the fingers)
    lifted    the object's centre 0.2 m above the table top, where the task pays its bonus
    held      that high and that close, for half a second without a break
    at goal   within the task's zone about the goal for at least one step
    lost      the episode terminated: the object fell off, or is out of reach

The longest hold is that of all episodes; the top speed is the median over those in which the object was lifted. Of a
task with held starts, --start begins episodes as its training does, and leaves out environments without such states;
goals after a success begin as in the original.
"""

import argparse

import torch

import evaluate
from benchmarks.scripts.help import HelpFormatter
from envs.rotations import conjugate, rotate
from envs.tasks.allegro_kuka import LIFT_OFFSET, LIFT_THRESHOLD, NEAR_FACTOR, OBJECT, AllegroKukaBase
from envs.tasks.allegro_kuka_held_starts import HeldStarts
from envs.terminal import needs_output

REACH = 0.02  # m
HELD_SECONDS = 0.5


def surface_distance(env):
    """From the nearest fingertip point to the object's surface, 0 inside it (N,) m."""
    from_centre = env.fingertips() - env.engine.body_pos[:, OBJECT, None]
    in_its_frame = rotate(conjugate(env.engine.body_quat[:, OBJECT, None]), from_centre)
    return (in_its_frame.abs() - env.object_size[:, None] / 2.0).clamp(min=0.0).norm(dim=2).amin(1)


def begin(env, start):
    """The observation of a reset, (N, D), and which environments begin as wanted, (N,) bool."""
    if start == "original":
        return env.reset(), torch.ones(env.num_envs, dtype=torch.bool)
    env.find_held_states()
    env.reset()
    kind = [each.name for each in env.starts].index(start)
    possible = env.possible_starts()[:, kind]
    env.begin_with(possible, torch.full_like(env.kind, kind))
    return env.observe(), possible


def play(env, obs, player):
    """The first whole episode of every environment: name -> (N,), and the sums of its reward's terms (N, terms).

    reached, lifted, at goal, lost: 0 or 1; longest: steps in a row that it was held; speed: the highest, m/s, while it
    was lifted; length: steps; successes.
    """
    ended = env.zeros(dtype=torch.bool)
    names = "reached", "lifted", "longest", "at goal", "speed", "lost", "length", "successes"
    seen = {name: env.zeros() for name in names}
    streak = env.zeros()
    terms = torch.zeros_like(env.term_sums)
    while not ended.all():
        obs, _, terminated, truncated, info = env.step(player.act(obs))
        player.dones = (terminated | truncated)[None]
        # a finished environment shows its next episode already
        going = ~ended & ~player.dones[0]
        near = surface_distance(env) < REACH
        up = env.engine.body_pos[:, OBJECT, 2] + LIFT_OFFSET > LIFT_THRESHOLD
        streak = (streak + 1.0) * (near & up)
        now = {
            "reached": near,
            "lifted": up,
            "longest": streak,
            "at goal": env.keypoint_distance() <= NEAR_FACTOR * env.tolerance,
            "speed": env.engine.body_linvel[:, OBJECT].norm(dim=1) * up,
        }
        for name, value in now.items():
            seen[name] = torch.where(going, torch.maximum(seen[name], value), seen[name])
        last = info["episode"]["done"] & ~ended
        length = info["episode"]["length"]
        for name, value in {"lost": terminated, "length": length, "successes": env.finished_successes}.items():
            seen[name] = torch.where(last, value, seen[name])
        terms = torch.where(last[:, None], env.finished_term_means * length[:, None], terms)
        ended |= last
    seen["at goal"] = seen["at goal"].maximum((seen["successes"] > 0).float())  # a success may move the goal at once
    return seen, terms


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("run", help="a run's folder or a policy's")
    parser.add_argument("--episodes", type=int, default=256, help="one in each environment")
    parser.add_argument("--start", default="original", help="how episodes begin, one of the task's kinds of start")
    parser.add_argument("--seed", type=int, default=1_000_000, help="random seed")
    args = parser.parse_args(argv)
    saved, script = evaluate.load(args.run)
    trained = f"{saved['args']['env_id']}, {saved['script']}.py, {saved['global_step']:,} steps"
    print(f"{trained}, {args.episodes} episodes\n")
    rows = []
    term_rows = []
    for actions in ("sampled", "mean"):
        env = evaluate.make_env(saved, args.episodes, args.seed, "auto", "cpu")
        possible = [start.name for start in env.starts if start.first] if isinstance(env, HeldStarts) else ["original"]
        if not isinstance(env, AllegroKukaBase):
            parser.error(f"{args.run}: of {saved['args']['env_id']}, which is not a task of AllegroKuka")
        if args.start not in possible:
            parser.error(f"--start {args.start}: must be one of {', '.join(possible)}")
        agent = evaluate.make_agent(saved, script, env, "cpu")
        evaluate.seed_noise(args.seed)
        ids = torch.zeros(args.episodes, dtype=torch.long)
        obs, wanted = begin(env, args.start)
        seen, terms = play(env, obs, evaluate.Player(agent, ids, actions == "mean"))
        seen = {name: value[wanted] for name, value in seen.items()}
        terms = terms[wanted]
        longest = seen["longest"] / env.frame_rate
        shares = [seen["reached"], seen["lifted"], longest >= HELD_SECONDS, seen["at goal"], seen["lost"]]
        speed = seen["speed"][seen["lifted"] > 0]
        row = [actions, *(f"{share.float().mean():.0%}" for share in shares), f"{longest.max():.2f} s"]
        row += [f"{speed.median():.1f} m/s" if len(speed) else "", f"{seen['length'].mean():.0f}"]
        rows.append(row + [f"{seen['successes'].mean():.2f}"])
        term_rows.append([actions, *(f"{term:.1f}" for term in terms.mean(0)), f"{terms.sum(1).mean():.1f}"])
    titles = "actions reached lifted held at_goal object_lost longest_hold top_speed_when_up length successes".split()
    for header, table in ((titles, rows), (["actions", *env.reward_names, "sum"], term_rows)):
        lines = [[title.replace("_", " ") for title in header], ["-"] * len(header), *table]
        print(*(f"| {' | '.join(line)} |" for line in lines), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
