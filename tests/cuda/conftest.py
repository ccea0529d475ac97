"""A CUDA device without a GPU: tensors that say cuda:0, keep their numbers on the CPU, and mix with no others.

As on CUDA, 0-dimensional CPU tensors may join elementwise operators and CPU indices may index; generators are the
device's own, and their states have 16 bytes.
"""

import ctypes
import pathlib
import traceback

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE = torch.device("cuda:0")
# Members of c10::DeviceType
CUDA = 1
META = 14
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
TAKE_SCALARS = ("masked_fill", "masked_fill_", *INDEXING)  # these take 0-dimensional tensors of another device


class CudaTensor(torch.Tensor):
    """To C++ a tensor on "meta", for which autograd needs no streams; its numbers are `values`, on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    __torch_dispatch__ = classmethod(lambda *inputs: NotImplemented)  # all that happens goes through Device
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def __new__(cls, values):
        layout = values.size(), values.stride(), values.storage_offset()
        self = torch.Tensor._make_wrapper_subclass(cls, *layout, dtype=values.dtype, device="meta")
        self.values = values.detach()
        return self

    def __getitem__(self, index):  # C++ would put a list on meta, which has no numbers
        index = index if isinstance(index, tuple) else (index,)
        return super().__getitem__(tuple(torch.tensor(x, device=DEVICE) if isinstance(x, list) else x for x in index))


waits = []  # file and line of this repository that made the host wait for the GPU, each time
WAITING = ("_local_scalar_dense", "nonzero", "masked_select")


def note_wait():
    """Add the innermost line of the repository, tests aside, to `waits`."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(ROOT))]
    own = [frame for frame in frames if "/tests/" not in frame.filename]
    if own:
        waits.append(f"{pathlib.Path(own[-1].filename).relative_to(ROOT)}:{own[-1].lineno}")


def must_wait(func, args, kwargs, on_cuda):
    """Whether an operator's result, or its size, must be known to the host before it goes on."""
    name = func.overloadpacket.__name__
    if name in INDEXING and on_cuda:
        return any(torch.is_tensor(index) and index.dtype == torch.bool for index in args[1])
    to_host = name == "_to_copy" and torch.device(kwargs.get("device") or "cuda").type == "cpu"
    to_host = to_host or name == "copy_" and isinstance(args[1], CudaTensor) and not isinstance(args[0], CudaTensor)
    given = isinstance(args[0], CudaTensor) if args else False
    return to_host and (given or name == "copy_") or name in WAITING and on_cuda


def of_values(name):
    """A method of CudaTensor that calls that of its values."""

    def method(self, *args):
        note_wait()
        return getattr(self.values, name)(*args)

    return method


for name in ("tolist", "__format__", "__reduce_ex__"):  # a saved tensor is what map_location="cpu" makes of it
    setattr(CudaTensor, name, of_values(name))


class CudaGenerator(torch._C.Generator):
    made = {}  # address -> generator, since C++ forgets the object
    states = {}  # hash -> state: what the 16 bytes stand for

    def __new__(cls, device="cpu"):
        self = super().__new__(cls)
        return cls.made.setdefault(self._cdata, self) if torch.device(device).type == "cuda" else torch._C.Generator()

    def get_state(self):
        state = super().get_state()
        self.states[hash(state.numpy().tobytes())] = state
        return torch.tensor([hash(state.numpy().tobytes()), 0]).view(torch.uint8)

    def set_state(self, state):
        number, _ = state.view(torch.int64).tolist()
        return super().set_state(self.states[number])


DEFAULT_GENERATOR = CudaGenerator("cuda")


class Device(TorchDispatchMode):
    """Runs operators on the CPU; a result is on CUDA if a tensor or the argument `device` is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        given = kwargs.get("generator")
        on_cuda = check_tensors(func, args, kwargs) if device is None else torch.device(device).type != "cpu"
        if given and on_cuda != (given._cdata in CudaGenerator.made):
            raise RuntimeError(f"{func}: the generator is not on the device of the result")
        if must_wait(func, args, kwargs, on_cuda):
            note_wait()
        if kwargs.get("device"):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if on_cuda and not given and torch.Tag.nondeterministic_seeded in func.tags:
            kwargs["generator"] = DEFAULT_GENERATOR
        inputs, kwargs = tree_map_only(CudaTensor, lambda x: x.values, (args, kwargs))
        output = func.overloadpacket(*inputs, **kwargs) if "generator" in kwargs else func(*inputs, **kwargs)
        if func._schema.is_mutable:
            return None if output is None else args[0]
        return tree_map_only(torch.Tensor, CudaTensor, output) if on_cuda else output


def check_tensors(func, args, kwargs):
    """Whether an operator runs on CUDA. Raises RuntimeError where only some of its tensors are there."""
    name = func.overloadpacket.__name__
    tensors = [x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)]
    foreign = [x for x in tensors if not isinstance(x, CudaTensor)]
    on_cuda = len(foreign) < len(tensors)
    if name in INDEXING:
        foreign = [x for x in foreign if not any(x is index for index in args[1])]
    if name in TAKE_SCALARS or torch.Tag.pointwise in func.tags and torch.is_tensor(args[0]):
        foreign = [x for x in foreign if x.dim() or func._schema.is_mutable and x is args[0]]
    if on_cuda and foreign and name not in ("copy_", "_to_copy"):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")
    return on_cuda


@pytest.fixture
def cuda(monkeypatch):
    """Torch has a CUDA device until the test ends."""
    try:  # the guards of all kinds of device
        library = ctypes.CDLL(f"{torch.__path__[0]}/lib/libc10.so")
        guards = (ctypes.c_void_p * (META + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError) as error:
        pytest.skip(f"no false CUDA device: {error}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda _: None,
        "_lazy_init": lambda: None,
        "manual_seed_all": DEFAULT_GENERATOR.manual_seed,
        "get_rng_state": DEFAULT_GENERATOR.get_state,
        "set_rng_state": DEFAULT_GENERATOR.set_state,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch, "Generator", CudaGenerator)
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    real_guard = guards[CUDA]
    guards[CUDA] = guards[META]  # which does nothing
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor takes its data to CUDA by an operator of its own
    with Device():
        yield
    guards[CUDA] = real_guard
    torch.__future__.set_overwrite_module_params_on_conversion(False)
    torch._C._set_only_lift_cpu_tensors(False)
