"""Every kernel can be built for a GPU, also where there is none: Triton's interpreter takes more than its compiler."""

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from afield.kernels import depthwise, norms, photos, probe  # noqa: E402

H200 = GPUTarget("cuda", 90, 32)
BLOCK = {"C": 96, "CHANNELS": 64, "TILE": 16}
LAYER = BLOCK | {"K": 5, "TOP": 1, "LEFT": 1, "H": 56, "W": 56, "OUT_H": 28, "OUT_W": 28}
PHOTOS = {"H": 224, "W": 224, "TILE": 1024, "TILES": 49}
BUILT = [
    (probe.fill, {}),
    (norms.moments, BLOCK | {"UNROLL": 4}),
    (norms.sums, BLOCK | {"UNROLL": 4}),
    (norms.finish_moments, {"C": 96, "PROGRAMS": 64, "GROUP": 8}),
    (norms.finish_sums, {"C": 96, "PROGRAMS": 64, "GROUP": 8}),
    (norms.flat_forward, BLOCK),
    (norms.flat_backward, BLOCK),
    (norms.pool_forward, BLOCK | {"H": 28, "W": 28, "CLOSED": 9}),
    (norms.pool_backward, BLOCK | {"H": 28, "W": 28, "CLOSED": 9}),
    (depthwise.correlate, LAYER | {"STRIDE": 2, "FLIP": False}),
    (depthwise.spread_strided, LAYER),
    (depthwise.weight_shares, LAYER | {"STRIDE": 2}),
    (photos.luminances, PHOTOS),
    (photos.change, PHOTOS | {"ALL_TILES": 64}),
]
NUMBERS = {"rows": "i32", "steps": "i32", "programs": "i32", "count": "i32", "chunk": "i32"}
NUMBERS |= {"least": "fp32", "most": "fp32", "momentum": "fp32", "eps": "fp32"}
MAPS = {"pool": "*u8", "picks": "*i64", "codes": "*u8", "g": "*bf16", "x": "*bf16", "y": "*bf16", "dx": "*bf16"}


@pytest.mark.parametrize(("kernel", "sizes"), BUILT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_kernel_is_built_for_an_h200(kernel, sizes, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if not hasattr(kernel, "arg_names"):
        pytest.skip("the interpreter builds nothing")
    names = kernel.arg_names
    types = {name: "constexpr" if name in sizes else (NUMBERS | MAPS).get(name, "*fp32") for name in names}
    source = ASTSource(kernel, types, constexprs={(names.index(name),): size for name, size in sizes.items()})
    built = triton.compile(source, target=H200, options={"enable_fp_fusion": True})
    assert built.asm["cubin"]


def test_all_kernels_are_built():
    listed = {kernel.__name__ for kernel, _ in BUILT}
    there = {name for file in (norms, depthwise, photos, probe) for name in vars(file) if name[0] != "_"}
    assert {name for name in there if name not in ("triton", "tl", "ROW")} == listed
