"""What processes say to each other, in a group of one: by gloo, and on a GPU by NCCL, which takes only its tensors."""

from copy import deepcopy

import pytest
import torch
from torch import distributed

from afield import Batch
from afield.methods.create import create_method
from afield.networks.sharing import Sharing
from support.comparing import same

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.fixture
def group(tmp_path, request):
    backend = {"cpu": "gloo", "cuda": "nccl"}[request.param]
    distributed.init_process_group(backend, init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield torch.device(request.param)
    distributed.destroy_process_group()


def losses_and_gradients(method, batch):
    losses = {}
    for found in method.training_step(batch):
        losses |= found
        sum(found.values()).backward()
    return losses, {name: value.grad for name, value in method.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("group", ["cpu", GPU], indirect=True)
@pytest.mark.parametrize("kind", ["together", "apart"])
@pytest.mark.parametrize("name", ["far", "mcd"])
def test_a_step_that_is_shared_with_nobody_is_the_step_of_one_process(group, name, kind):
    torch.manual_seed(0)
    network = {"width": 8, "neck": [6], "batch_norm": kind}
    alone = create_method(name, num_classes=3, num_sources=2, image_size=8, network=network)
    alone = alone.to(group, torch.float64).train()
    batch = Batch(torch.randn(12, 3, 8, 8).to(group, torch.float64), (torch.arange(8) % 3).to(group), num_sources=2)
    shared = deepcopy(alone)
    sharing = Sharing(shared, shared.layout, 0, 1)
    with sharing.under_way():
        found = losses_and_gradients(shared, batch)
    same(found, losses_and_gradients(alone, batch))
    same(shared.state_dict(), alone.state_dict())
