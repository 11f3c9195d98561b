"""The same library on a GPU. Skipped where there is none."""

import pytest
import torch

import afield
from afield.data.batches import BatchStream
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.networks.wide_linear import WideLinear
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

ON_GPU = {"training.device": "cuda"}
HAS_BF16 = torch.cuda.is_bf16_supported(including_emulation=False)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
@pytest.mark.parametrize("method", ["baseline", "baseline-att-align", "far", "far-paper"])
def test_every_precision_trains_to_finite_losses(train_toy, tmp_path, method, precision):
    run = train_toy(tmp_path / "run", method, settings=ON_GPU | {"training.precision": precision})
    losses = [record["losses"] for record in run.records if record["event"] == "evaluation"]
    assert losses and all(torch.tensor(list(values.values())).isfinite().all() for values in losses)
    assert run.records[0].get("precision") == (("bf16" if HAS_BF16 else "fp32") if precision == "auto" else None)


def test_images_live_on_the_gpu_as_bytes(toy):
    task, _ = make_task(toy, "uda", "night")
    stream = BatchStream(task, 4, Preprocessing(16, (0.5,) * 3, (0.5,) * 3), torch.device("cuda"), seed=0)
    (images,) = stream.arrivals.parts
    assert (images.device.type, images.dtype) == ("cuda", torch.uint8)
    assert stream.next().images.device.type == "cuda"


def test_the_gpu_computes_the_losses_the_cpu_computes(train_toy, tmp_path):
    first = {}
    for device in ("cpu", "cuda"):
        settings = {"training.device": device, "training.evaluate_every": 1, "data.augmentation": "none"}
        run = train_toy(tmp_path / device, "far", steps=3, settings=settings)
        first[device] = next(r["losses"] for r in run.records if r["event"] == "evaluation")
    assert first["cuda"] == pytest.approx(first["cpu"], rel=1e-3)


def test_a_run_killed_on_the_gpu_resumes_and_ends(train_toy, tmp_path, monkeypatch):
    step = Loop._train_step

    def killed(loop):
        if loop.step == 9:
            raise KeyboardInterrupt
        return step(loop)

    monkeypatch.setattr(Loop, "_train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path / "run", settings=ON_GPU)
    monkeypatch.setattr(Loop, "_train_step", step)
    assert train_toy(tmp_path / "run", settings=ON_GPU, resume=True).step == 12


def test_a_checkpoint_of_the_gpu_predicts_on_the_cpu(train_toy, toy, tmp_path):
    run = train_toy(tmp_path / "run", settings=ON_GPU)
    model = afield.load(run.checkpoint)
    assert set(model.predict(toy["night"].test.images.array)) <= set(model.classes)


def test_divergence_on_the_gpu_keeps_a_good_checkpoint(train_toy, tmp_path):
    with pytest.raises(afield.AfieldError, match="diverged"):
        train_toy(tmp_path / "run", steps=60, settings=ON_GPU | {"training.lr": 1e9})
    weights = afield.load(tmp_path / "run/last.ckpt").state_dict().values()
    assert all(value.isfinite().all() for value in weights)


def test_the_average_is_of_the_weights_after_each_recorded_step(train_toy, tmp_path, monkeypatch):
    seen, step = [], Loop._train_step

    def watched(loop):
        step(loop)
        seen.append(loop.method.backbone[0].weight.detach().double())

    monkeypatch.setattr(Loop, "_train_step", watched)
    run = train_toy(tmp_path / "run", "baseline", settings=ON_GPU | {"training.average": "uniform"})
    averaged = load_checkpoint(run.checkpoint).state["model"]["backbone.0.weight"].double()
    torch.testing.assert_close(averaged, torch.stack(seen).mean(dim=0).cpu(), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not HAS_BF16, reason="needs bf16")
def test_the_weight_of_a_wide_layer_has_the_gradient_of_a_plain_one():
    plain = torch.nn.Linear(512, 384).cuda()
    wide = WideLinear(512, 384).cuda()
    wide.load_state_dict(plain.state_dict())
    x, g = torch.randn(320, 512, device="cuda"), torch.randn(320, 384, device="cuda")
    found = {}
    for layer in (plain, wide):
        values = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(values)
        gradients = torch.autograd.grad(y, (values, *layer.parameters()), g.to(y.dtype))
        found[layer] = y, *gradients
    assert all(one.dtype == other.dtype for one, other in zip(found[plain], found[wide], strict=True))
    for one, other in zip(found[plain], found[wide], strict=True):
        torch.testing.assert_close(other.float(), one.float(), rtol=0.02, atol=0.02 * one.float().abs().max().item())
    exact = g.bfloat16().double().T @ x.bfloat16().double()
    torch.testing.assert_close(found[wide][2].double(), exact, rtol=1e-4, atol=1e-3)
