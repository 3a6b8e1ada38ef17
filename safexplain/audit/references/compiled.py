"""Forward passes that are compiled once for all models of one architecture.

`torch.compile` compiles a module, and compiling takes longer than training a small network. So every model trains in
the same module: its weights and buffers are copied in, and out again when it is trained.
"""

from __future__ import annotations

import copy
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain.errors import ConfigurationError, RefusedError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(b, ...) inputs and (b,) labels -> their mean cross-entropy."""


class _Last(threading.local):
    """The module that this thread compiled last: threads do not train in the same one."""

    stand_in: StandIn | None = None


_last = _Last()


def loss_in(model: nn.Module) -> Loss:
    """Mean cross-entropy of a model's outputs, in float32 whatever these are in."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, y)

    return loss


class StandIn:
    """A copy of a model that trains in its place, and in that of others of its architecture: 4-d parameters lie
    `channels_last`, and the loss of batches of one size is compiled, with CUDA graphs on a GPU."""

    def __init__(self, model: nn.Module, *, channels_last: bool, compile: bool) -> None:
        self.module = copy.deepcopy(model)
        self.channels_last, self.compile = channels_last, compile
        if channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.loss = self.compiled_loss = loss_in(self.module)
        if compile:
            self.compiled_loss = _compiled(self.loss, next(model.parameters()).device)

    def takes(self, model: nn.Module) -> bool:
        """Fill in the weights, buffers and flags of a model; False where it is not of this architecture."""
        if _outline(model) != _outline(self.module):
            return False
        copy_tensors(model, self.module)
        for source, target in zip(model.parameters(), self.module.parameters(), strict=True):
            target.requires_grad_(source.requires_grad)
        try:
            return model_digest(self.module) == model_digest(model)  # of settings: the weights are equal
        except RefusedError:
            return False

    def parts(self, model: nn.Module, parts: list[nn.Module]) -> list[nn.Module]:
        """The modules here that stand for modules of a model."""
        names = {part: name for name, part in model.named_modules()}
        return [self.module.get_submodule(names[part]) for part in parts]


def stand_in_for(model: nn.Module, *, channels_last: bool, compile: bool) -> StandIn:
    """A stand-in with a model's weights; a compiled one is that of the call before, where the architecture is equal."""
    last = _last.stand_in
    if compile and last is not None and last.channels_last == channels_last and last.takes(model):
        return last
    made = StandIn(model, channels_last=channels_last, compile=compile)
    if compile:
        _last.stand_in = made
    return made


def forget() -> None:
    """Give back what compiled modules hold, memory of CUDA graphs among it."""
    _last.stand_in = None


def copy_tensors(source: nn.Module, target: nn.Module) -> None:
    """Parameters and buffers, in place: the target's keep their memory format."""
    there = dict(tensors_of(target))
    with torch.no_grad():
        for name, t in tensors_of(source):
            there[name].copy_(t)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, those too that are not in its state_dict."""
    return chain(model.named_parameters(), model.named_buffers())


def _outline(model: nn.Module) -> list[tuple[object, ...]]:
    """Classes of the modules; sizes, types and devices of the tensors."""
    modules = [(name, type(module)) for name, module in model.named_modules()]
    return [*modules, *((name, t.shape, t.dtype, t.device) for name, t in tensors_of(model))]


def _compiled(loss: Loss, device: torch.device) -> Loss:
    assert isinstance(loss, types.FunctionType)
    own = loss.__code__.replace()  # dynamo counts compilations by code: one architecture does not count for another
    function = types.FunctionType(own, loss.__globals__, loss.__name__, None, loss.__closure__)
    on_cuda = device.type == "cuda"
    fast = torch.compile(function, dynamic=False, mode="reduce-overhead" if on_cuda else None)

    new_step: Callable[[], None] = torch.compiler.cudagraph_mark_step_begin

    def run(x: Tensor, y: Tensor) -> Tensor:
        if on_cuda:
            new_step()  # what the step before left in the graph's memory is not needed any more
        found: Tensor = fast(x, y)
        return found

    return run


@contextmanager
def compiler_errors() -> Iterator[None]:
    """A sentence that says what to do, for whatever torch.compile raises; its own advice is not said.

    Raises:
        ConfigurationError: compiling is impossible here, or that model cannot be compiled.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores for float32 matrix multiplication available")
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # of torch 2.7 and 2.8
            yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = next(iter(str(error).strip().splitlines()), "")
        raise ConfigurationError(
            f"recipe: compile = true does not work here ({type(error).__name__}: {said:.300}); torch.compile needs a"
            " C++ compiler such as g++, on a GPU Triton too, and a model that it can trace: install what is missing, or"
            " set compile = false"
        ) from error
