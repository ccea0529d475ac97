"""Several processes (W), one run: what they average, share and gather. In a single process it changes nothing.

torchrun starts them. Each has the same network and an equal block of every agent's environments, so a mean over all
environments is the mean of the processes' means.
"""

import io
import os
import sys

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
from envs.base import process_rank

import torch
import torch.distributed as dist

if dist.is_available():
    import torch.distributed.nn  # noqa: F401, loaded later its functions' defaults would keep the group alive

RANK, WORLD_SIZE = process_rank()
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
    """Rank 0's object, whatever it is: a tensor on the CPU, a number, a string, or a container of these."""
    values = [value]
    if WORLD_SIZE > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]


def gather(value):
    """On rank 0 every process's value, what torch.save takes, in a list by rank; elsewhere an empty list."""
    if WORLD_SIZE == 1:
        return [value]
    data = io.BytesIO()
    torch.save(value, data)
    received = [b""] * WORLD_SIZE if RANK == 0 else None
    dist.gather_object(data.getvalue(), received, dst=0)
    return [torch.load(io.BytesIO(x), map_location="cpu", weights_only=True) for x in received or []]


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
    """A new tensor, on the device of x, with the values of rank 0's x; its shape is the same in every process."""
    x = x.clone()
    if WORLD_SIZE > 1:
        dist.broadcast(x, src=0)
    return x


def of_each(x):
    """A tensor (*shape) of every process: (W, *shape)."""
    if WORLD_SIZE == 1:
        return x[None]
    values = [torch.empty_like(x) for _ in range(WORLD_SIZE)]
    dist.all_gather(values, x)
    return torch.stack(values)


def share(tensors):
    """Overwrite each of these tensors with rank 0's, in place, so that a module keeps its parameters and buffers."""
    for tensor in tensors:
        tensor.copy_(broadcast(tensor.detach()))


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
    mean = means.mean(0)
    variance = (variances + (means - mean) ** 2).mean(0)
    return mean, variance, WORLD_SIZE * len(x)


def mean_and_std(x):
    """Mean and standard deviation, as torch.mean and torch.std, of all entries of x in all processes."""
    means, stds = of_each(torch.stack([x.mean(), x.std()])).unbind(1)
    n = x.numel()
    degrees = WORLD_SIZE * x.numel() - 1
    within = stds**2 * (WORLD_SIZE * (n - 1) / degrees)
    between = (means - means.mean()) ** 2
    return means.mean(), (within + between * (WORLD_SIZE * n / degrees)).mean().sqrt()
