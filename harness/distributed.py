"""Several processes (W), one run: what they average, share and gather. In a single process it changes nothing.

torchrun starts them. Each has the same network and an equal block of every agent's environments, so a mean over all
environments is the mean of the processes' means.
"""

import io
import os
import sys

import envs  # noqa: F401, before torch: Isaac Gym must be imported first

import torch
import torch.distributed as dist
import torch.nn as nn

if dist.is_available():
    import torch.distributed.nn  # noqa: F401, loaded later its functions' defaults would keep the group alive

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))
RANK = int(os.environ.get("RANK", 0)) if WORLD_SIZE > 1 else 0
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0)) if WORLD_SIZE > 1 else 0
SEED_OFFSET = 1_000_003 * RANK  # rank 0 keeps the run's seed


def start():
    """Meet the other processes. From here on only rank 0 prints to standard output."""
    if WORLD_SIZE > 1 and not dist.is_initialized():
        if RANK:
            sys.stdout = open(os.devnull, "w")
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def finish():
    """Wait for all, then end gloo's threads: beside them an ending interpreter may abort (pytorch/pytorch#179291)."""
    if WORLD_SIZE > 1:
        dist.barrier()
        dist.destroy_process_group()


def from_rank_0(value):
    """Rank 0's value: tensors on the CPU, numbers, strings, or containers of these."""
    values = [value]
    if WORLD_SIZE > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]


def gather(value):
    """On rank 0 the others' value(), by rank from 1; elsewhere an empty list. It is what torch.save takes."""
    if WORLD_SIZE == 1:
        return []
    data, received = io.BytesIO(), [b""] * WORLD_SIZE if RANK == 0 else None
    torch.save(value(), data)
    dist.gather_object(data.getvalue(), received, dst=0)
    return [torch.load(io.BytesIO(x), map_location="cpu", weights_only=True) for x in (received or [])[1:]]


def own_part(saved):
    """This process's part of a checkpoint, and whether that was written by as many processes as there are now."""
    parts = [saved, *saved["other_processes"]]
    if len(parts) == WORLD_SIZE:
        return parts[RANK], True
    print(f"the checkpoint is of {len(parts)} processes, not {WORLD_SIZE}: all episodes begin anew")
    return saved, False


def total(x):
    """The sum of a tensor over the processes."""
    if WORLD_SIZE > 1:
        x = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x)
    return x


def average(x):
    """The mean of a tensor of floats over the processes."""
    return total(x) / WORLD_SIZE


def broadcast(x):
    """A tensor of rank 0."""
    return of_each(x)[0]


def of_each(x):
    """A tensor (*shape) of every process: (W, *shape)."""
    return total(torch.stack([x if rank == RANK else torch.zeros_like(x) for rank in range(WORLD_SIZE)]))


def share(tensors):
    """Overwrite a list of tensors with rank 0's, in place."""
    values = from_rank_0([tensor.detach().cpu() for tensor in tensors]) if tensors else []
    for tensor, value in zip(tensors, values):
        tensor.copy_(value)


def is_shared(value):
    """Whether all processes hold the same: networks, optimizers, lineage; not what belongs to environments."""
    of_environments = isinstance(value, torch.Tensor) or hasattr(value, "reset")
    return not of_environments and (not isinstance(value, nn.Module) or any(True for _ in value.parameters()))


def share_curriculum(env):
    """Overwrite the tensors of the environment's curriculum with rank 0's."""
    share([getattr(env, name) for name in getattr(env, "curriculum", ())])


def average_gradients(module):
    """Replace every gradient by its mean over the processes, sent as one flat tensor."""
    if WORLD_SIZE > 1:
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        means = average(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(gradients, means.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(mean.view_as(gradient))


def moments(x):
    """Mean and variance over the rows of x (B, *shape) in all processes (*shape), and the number of rows, W B."""
    means, variances = of_each(torch.stack([x.mean(0), x.var(0, unbiased=False)])).unbind(1)
    return means.mean(0), (variances + (means - means.mean(0)) ** 2).mean(0), WORLD_SIZE * len(x)


def mean_and_std(x):
    """Mean and standard deviation, as torch.mean and torch.std, of all entries of x in all processes."""
    means, stds = of_each(torch.stack([x.mean(), x.std()])).unbind(1)
    n, degrees = x.numel(), WORLD_SIZE * x.numel() - 1
    within, between = stds**2 * (WORLD_SIZE * (n - 1) / degrees), (means - means.mean()) ** 2
    return means.mean(), (within + between * (WORLD_SIZE * n / degrees)).mean().sqrt()
