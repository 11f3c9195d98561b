"""Any image that Pillow reads becomes a square of RGB bytes, whatever it is in the file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from afield.data.decoder import examine
from afield.data.decoding import decoders
from afield.data.pixels import MOST_PIXELS, UnreadableImageError, open_image, read_square, upright
from afield.errors import AfieldError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def square(image: Image.Image, side: int = 8, oblong: str = "squash", kind: str = "PNG", **options) -> np.ndarray:
    pixels = read_square(encoded(image, kind, **options), side, oblong)
    assert pixels.shape == (side, side, 3) and pixels.dtype == np.uint8
    return pixels


def halves(left, right, size=(8, 8), mode="RGB") -> Image.Image:
    """Two colours side by side."""
    image = Image.new(mode, size, left)
    ImageDraw.Draw(image).rectangle((size[0] // 2, 0, *size), fill=right)
    return image


def near(pixel, colour, tolerance=6) -> bool:
    return bool((np.abs(np.asarray(pixel, int) - colour) <= tolerance).all())


def test_grey_has_three_equal_channels():
    for mode, value in (("L", 100), ("1", 255)):
        assert (square(Image.new(mode, (8, 8), value)) == value).all()
    assert (square(Image.new("LA", (8, 8), (200, 255))) == 200).all()


def test_what_is_transparent_lies_on_black():
    pixels = square(halves((255, 0, 0, 0), (255, 255, 255, 128), mode="RGBA"))
    assert near(pixels[0, 0], (0, 0, 0)) and near(pixels[0, 7], (128, 128, 128))


def test_a_palette_is_looked_up_with_its_transparency():
    image = halves(RED, GREEN).quantize(4)
    pixels = square(image)
    assert near(pixels[0, 0], RED) and near(pixels[0, 7], GREEN)
    clear = image.getpixel((0, 0))
    for kind in ("PNG", "GIF"):
        pixels = square(image, kind=kind, transparency=clear)
        assert near(pixels[0, 0], (0, 0, 0)) and near(pixels[0, 7], GREEN)


def test_cmyk_becomes_rgb():
    pixels = square(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), kind="JPEG", quality=95)
    assert near(pixels[4, 4], RED, 12)


def test_sixteen_bits_are_scaled_and_not_cut_off():
    values = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    for kind in ("PNG", "TIFF"):
        pixels = square(Image.fromarray(values), kind=kind)
        assert np.abs(pixels[..., 0].astype(int) - values / 257).max() <= 1
    floats = Image.fromarray(np.full((8, 8), 0.5, np.float32))
    assert (square(floats, kind="TIFF") == 128).all()


@pytest.mark.parametrize("oblong", ["squash", "crop", "pad"])
def test_sixteen_bits_may_have_the_high_byte_first(monkeypatch, oblong):
    monkeypatch.setattr("afield.data.pixels.PIXELS_AT_A_TIME", 100)  # as a large image: in strips
    values = np.linspace(0, 65535, 600).reshape(20, 30).astype(np.uint16)
    little = tiff_of(values, "<")
    big = tiff_of(values, ">")
    assert open_image(big).mode != open_image(little).mode
    for side in (4, 20, 30):
        assert (read_square(big, side, oblong) == read_square(little, side, oblong)).all()
    assert examine(big)[1:] == (30, 20, "")


def tiff_of(values: np.ndarray, order: str) -> bytes:
    """A grey TIFF of sixteen bits by hand, for Pillow does not write one with the high byte first."""
    height, width = values.shape
    pixels = values.astype(f"{order}u2").tobytes()
    tags = {256: width, 257: height, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(pixels)}
    directory = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, 8 + len(pixels))
    return start + pixels + struct.pack(f"{order}H", len(tags)) + directory + bytes(4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_an_image_upright(orientation):
    """What a camera that was held that way has written comes out as what it saw: red, green above blue, white."""
    seen = Image.new("RGB", (16, 8))
    for colour, corner in ((RED, (0, 0)), (GREEN, (8, 0)), (BLUE, (0, 4)), (WHITE, (8, 4))):
        seen.paste(colour, (*corner, corner[0] + 8, corner[1] + 4))
    turn = Image.Transpose
    undo = {
        2: turn.FLIP_LEFT_RIGHT, 3: turn.ROTATE_180, 4: turn.FLIP_TOP_BOTTOM, 5: turn.TRANSPOSE, 6: turn.ROTATE_90,
        7: turn.TRANSVERSE, 8: turn.ROTATE_270,
    }  # fmt: skip
    written = seen.transpose(undo[orientation]) if orientation in undo else seen
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(written, exif=exif)
    pixels = read_square(content, 8, "squash")
    corners = pixels[1, 1], pixels[1, 6], pixels[6, 1], pixels[6, 6]
    assert all(near(pixel, colour) for pixel, colour in zip(corners, (RED, GREEN, BLUE, WHITE), strict=True))
    assert examine(content)[1:] == (16, 8, "")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_says_nothing():
    content = encoded(halves(RED, GREEN), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert near(read_square(content, 8, "squash")[4, 1], RED, 40)
    assert examine(content)[1:] == (8, 8, "")


def test_an_oblong_image_is_squashed_cropped_or_padded():
    image = Image.new("RGB", (24, 8), RED)
    image.paste(GREEN, (8, 0, 16, 8))
    squashed, cropped, padded = (square(image, 12, way) for way in ("squash", "crop", "pad"))
    assert near(squashed[6, 1], RED) and near(squashed[6, 6], GREEN) and near(squashed[6, 10], RED)
    assert near(cropped[6, 1], GREEN, 60) and near(cropped[6, 10], GREEN, 60)
    assert near(padded[0, 6], (0, 0, 0)) and near(padded[11, 6], (0, 0, 0)) and near(padded[6, 0], RED)
    assert near(padded[6, 6], GREEN)


def test_a_large_jpeg_is_what_it_would_be_decoded_whole():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize((800, 600), Image.Resampling.BICUBIC)
    for oblong in ("squash", "crop", "pad"):
        fast = square(image, 32, oblong, "JPEG", quality=95).astype(int)
        assert np.abs(fast - square(image, 32, oblong)).mean() < 4


def test_a_large_jpeg_of_fine_detail_is_nearly_what_it_would_be_decoded_whole():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (128, 128, 3), np.uint8)).resize((256, 256), Image.Resampling.BICUBIC)
    content = encoded(image, "JPEG", quality=95)
    with Image.open(io.BytesIO(content)) as whole:
        expected = np.asarray(whole.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(read_square(content, 32, "squash") - expected).mean() < 4


def bomb() -> bytes:
    """A PNG of a few bytes that says it is 20,000 pixels high and wide."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def test_an_image_that_would_fill_the_memory_is_refused(tmp_path):
    with pytest.raises(UnreadableImageError, match=f"20000 x 20000 pixels; at most {MOST_PIXELS:,}"):
        open_image(bomb())
    (tmp_path / "bomb.png").write_bytes(bomb())
    (probe,) = decoders(2).probe([str(tmp_path / "bomb.png")])
    assert "20000 x 20000" in probe.error


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_half_a_file_is_named(tmp_path, kind):
    rng = np.random.default_rng(0)
    whole = encoded(Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)), kind)
    path = tmp_path / f"half.{kind.lower()}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AfieldError, match=path.name):
        read_square(path, 8, "squash")
    assert examine(str(path))[1:3] == (0, 0) and examine(str(path))[3]
    good = tmp_path / "good.png"
    good.write_bytes(encoded(Image.new("RGB", (8, 8))))
    out = np.empty((2, 8, 8, 3), np.uint8)
    with pytest.raises(AfieldError, match=path.name):
        decoders(2).decode([str(good), str(path)], 8, "squash", out)
    decoders(2).decode([str(good), str(good)], 8, "squash", out)


def test_damaged_files_end_no_process():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8))
    contents = []
    for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"):
        whole = np.frombuffer(encoded(image, kind), np.uint8)
        for _ in range(40):
            damaged = whole.copy()
            damaged[rng.integers(0, min(len(whole), 200), 4)] = rng.integers(0, 256, 4)
            contents.append(damaged.tobytes())
    pool = decoders(2)
    for start in range(0, len(contents), 40):
        probes = pool.probe(contents[start : start + 40])
        assert all(probe.error or probe.width > 0 for probe in probes)


def test_damaged_exif_costs_no_image_and_no_process(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (20, 60)).save(tmp_path / "good.webp", exif=turned)
    content = (tmp_path / "good.webp").read_bytes()
    assert examine(content)[1:] == (60, 20, "")
    damaged = content.replace(b"MM\0*", b"\xe6M\0*")
    assert damaged != content
    assert examine(damaged)[1:] == (20, 60, "")
    assert read_square(damaged, 8, "squash").shape == (8, 8, 3)


def test_a_photograph_is_turned_even_if_its_exif_cannot_be_written_again(monkeypatch):
    image = Image.new("RGB", (20, 60))
    image.getexif()[0x0112] = 6
    monkeypatch.setattr(Image.Exif, "tobytes", lambda self, offset=8: struct.pack(">H", "no number"))
    assert upright(image).size == (60, 20)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_sizes_are_those_of_upright_images(tmp_path, suffix):
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (20, 60)).save(tmp_path / f"x{suffix}", exif=turned)
    content = (tmp_path / f"x{suffix}").read_bytes()
    assert examine(content)[1:] == (60, 20, "")
    assert upright(open_image(content)).size == (60, 20)
    assert upright(upright(open_image(content))).size == (60, 20)
