"""What training sets for the whole process, and puts back afterwards: backends, generators, the host's memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from afield.config.training import TrainingOptions
from afield.training.devices import accelerator, precision_of
from afield.training.host_memory import memory_kept

RECOMPILE_LIMIT = 1000
FEW_CONVOLUTIONS = 10


@contextmanager
def backend_settings(options: TrainingOptions, network: nn.Module | None = None) -> Iterator[None]:
    """Settings of torch's backends for a network's steps (also recorded or compiled ones); afterwards the caller's.

    Batches have one shape, so that it is worth trying which kernels are fastest for a small network's convolutions.
    For those of an EfficientNet-Lite0 trying takes more than a minute, longer than a short run.
    """
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, precision)
        stack.callback(setattr, torch.backends.cudnn, "benchmark", benchmark)
        torch.backends.cudnn.benchmark = network is None or has_few_convolutions(network)
        stack.enter_context(memory_kept(accelerator(options)))
        # In a bf16 run the few products that stay in float32 need no more than the 10 bits of TF32, which convolutions
        # of a float32 run have as well.
        torch.set_float32_matmul_precision("high" if precision_of(options) == "bf16" else "highest")
        if options.execution == "compiled":
            from torch._dynamo import config  # takes a second to import

            # Every method and set of options is a version of the same function; beyond the limit none is compiled.
            stack.enter_context(config.patch(recompile_limit=RECOMPILE_LIMIT))
        yield


def has_few_convolutions(network: nn.Module) -> bool:
    """Whether it takes no time to speak of to try kernels for all of them."""
    return sum(isinstance(module, nn.Conv2d) for module in network.modules()) <= FEW_CONVOLUTIONS


@contextmanager
def isolated_generators(options: TrainingOptions) -> Iterator[None]:
    """Everything drawn inside follows the seed; the caller's generators stay as they were."""
    devices = [torch.cuda.current_device()] if accelerator(options) == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(options.seed)
        yield
