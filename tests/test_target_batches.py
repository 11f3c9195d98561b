"""More images of the target than of a source in a step, for methods that read the target as one."""

import pytest
import torch

import afield
from afield import AfieldError, Batch
from afield.methods.create import create_method
from conftest import SMALL
from support.comparing import same
from support.resuming import Killed, kill_before_step

POOLING = ["adda", "cdan", "dan", "dann", "jan", "mcc", "mcd", "mme"]


def train(toy, out, method, times, **others):
    settings = SMALL | {"training.target_batches": times}
    return afield.train(toy, "uda", "night", method, steps=6, out=out, settings=settings, progress=False, **others)


@pytest.mark.parametrize("method", POOLING)
def test_methods_that_read_the_target_as_one_train_with_more_of_it_and_resume_exactly(
    toy, tmp_path, monkeypatch, method
):
    whole = train(toy, tmp_path / "whole", method, 3)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 5)
        train(toy, tmp_path / "cut", method, 3)
    cut = train(toy, tmp_path / "cut", method, 3, resume=True)
    assert cut.evaluation == whole.evaluation
    assert train(toy, tmp_path / "usual", method, 1).evaluation["losses"] != whole.evaluation["losses"]


@pytest.mark.parametrize("method", ["far", "m3sda-beta", "coral", "dael"])
def test_methods_that_compare_domains_refuse(toy, tmp_path, method):
    with pytest.raises(AfieldError, match=f"'{method}' needs as many images of the target as of each source"):
        train(toy, tmp_path / "x", method, 2)
    assert not (tmp_path / "x").exists()


def test_0_means_as_many_images_of_the_target_as_of_all_sources_where_that_can_be(toy, tmp_path, capsys):
    settings = SMALL | {"training.target_batches": 0}
    for method, said in (("mcd", "3 x 4 + 1 x 12 images"), ("far", "4 x 4 images")):
        afield.train(toy, "uda", "night", method, steps=1, out=tmp_path / method, settings=settings)
        assert said in capsys.readouterr().err
    afield.train(toy, "dg", "night", "dann", steps=1, out=tmp_path / "dg", settings=settings)
    assert "3 x 4 images" in capsys.readouterr().err


def adapting():
    network = {"width": 8, "batch_norm": "apart"}
    torch.manual_seed(0)
    return create_method("dann", num_classes=3, num_sources=2, image_size=8, network=network).double().train()


def test_the_same_target_images_again_change_no_loss_that_is_a_mean_over_them():
    batch = Batch(torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.arange(8) % 3, num_sources=2)
    source, target = batch.split(batch.images)
    twice = Batch(torch.cat((source, target, target)), batch.labels, num_sources=2)
    same(*(next(iter(adapting().training_step(given))) for given in (twice, batch)))


def test_the_encoder_of_adda_takes_the_targets_statistics_of_all_its_images():
    found = {}
    for kind in ("together", "apart", "each"):
        torch.manual_seed(0)
        network = {"width": 8, "batch_norm": kind}
        method = create_method("adda", num_classes=3, num_sources=2, image_size=8, network=network).double().train()
        method.phase = 1
        # Twice as many of the target as of a source.
        batch = Batch(torch.randn(16, 3, 8, 8, dtype=torch.float64), torch.arange(8) % 3, num_sources=2)
        next(iter(method.training_step(batch)))
        found[kind] = method.backbone.state_dict()
    same(found["apart"], found["together"])
    same(found["each"], found["together"])


def test_batch_norm_apart_takes_the_targets_statistics_of_all_its_images():
    method = adapting()
    method.layout.note(num_sources=2, per_domain=4, target_batches=3)
    assert method.layout.divide(20) == [8, 12]
