"""Small files of pictures in every form that comes in, and what diffusers' load_image and A1111's rules make of them."""
import io
import json
import struct
import zlib

import numpy as np
from diffusers.utils import load_image
from PIL import Image, ImageOps

from common import EXPECTED, FIXTURES

WIDTH, HEIGHT = 7, 5
FOLDER = FIXTURES / "pictures"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
# Rows and columns that a pass begins with, and how many lie between.
ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def values(depth, samples, seed=0, most=None):
    top = (1 << depth) if most is None else most
    return np.random.default_rng(seed).integers(0, top, (HEIGHT, WIDTH, samples))


def chunk(kind, data=b""):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def packed(rows, depth):
    out = b""
    for row in rows:
        bits = "".join(format(int(value), f"0{depth}b") for value in row.reshape(-1))
        bits += "0" * (-len(bits) % 8)
        out += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return out


def png(color, depth, pixels=None, before=(), after=(), interlaced=False):
    pixels = values(depth, SAMPLES[color]) if pixels is None else pixels
    if interlaced:
        data = b"".join(packed(part, depth) for top, left, down, right in ADAM7 if (part := pixels[top::down, left::right]).size)
    else:
        data = packed(pixels, depth)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], depth, color, 0, 0, int(interlaced))
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *before, chunk(b"IDAT", zlib.compress(data, 9)), *after, chunk(b"IEND")])


def palette(count, seed=1):
    return chunk(b"PLTE", np.random.default_rng(seed).integers(0, 256, 3 * count, dtype=np.uint8).tobytes())


def exif(orientation, big=False, tag=0x0112):
    order = ">" if big else "<"
    value = struct.pack(order + "HxxI", orientation, 0)
    return (b"MM" if big else b"II") + struct.pack(order + "HIHHHI", 42, 8, 1, tag, 3, 1) + value


def xmp(orientation, element=False):
    inside = f"><tiff:Orientation>{orientation}</tiff:Orientation></rdf:Description>" if element else f' tiff:Orientation="{orientation}"/>'
    return ("<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF><rdf:Description" + inside + "</rdf:RDF></x:xmpmeta>").encode()


def international(text, compressed=False):
    return chunk(b"iTXt", b"XML:com.adobe.xmp\0" + (b"\1\0\0\0" + zlib.compress(text) if compressed else b"\0\0\0\0" + text))


def raw_profile(block):
    text = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
    return chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))


def saved(mode, seed=2, frames=1, **how):
    """A file by Pillow of smooth colours, which JPEG keeps."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    bands = [(40 + 25 * x + 9 * y * (k + 1) + 30 * seed) % 256 for k in range(len(mode))]
    pictures = [Image.fromarray(((np.stack(bands, -1) + 60 * n) % 256).astype(np.uint8).squeeze(), mode) for n in range(frames)]
    out = io.BytesIO()
    if frames > 1:
        how |= dict(save_all=True, append_images=pictures[1:], duration=40)
    pictures[0].save(out, **how)
    return out.getvalue()


def jpeg(mode="RGB", **how):
    return saved(mode, format="JPEG", quality=90, **how)


def webp(mode="RGB", **how):
    return saved(mode, format="WEBP", **how)


def with_transform(file, transform):
    """The file with another colour transform in its Adobe segment; None: without the segment."""
    at = file.index(b"\xff\xee\x00\x0eAdobe")
    return file[:at] + file[at + 16:] if transform is None else file[:at + 15] + bytes([transform]) + file[at + 16:]


def with_adobe(file, transform):
    return file[:2] + b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0" + bytes([transform]) + file[2:]


def files():
    for color, name, depths in [(GRAY, "gray", (1, 2, 4, 8, 16)), (RGB, "rgb", (8, 16)), (GRAY_ALPHA, "gray_alpha", (8, 16)), (RGBA, "rgba", (8, 16))]:
        for depth in depths:
            yield f"{name}{depth}.png", png(color, depth)
    for depth in (1, 2, 4, 8):
        yield f"palette{depth}.png", png(PALETTE, depth, before=[palette(1 << depth)])
    few = values(8, 1, most=6)
    yield "palette_short.png", png(PALETTE, 8, few, [palette(4)])
    yield "palette_alpha.png", png(PALETTE, 8, few, [palette(6), chunk(b"tRNS", bytes([255, 0, 128, 200, 129]))])
    yield "palette_one_clear.png", png(PALETTE, 8, few, [palette(6), chunk(b"tRNS", b"\xff\xff\0")])
    yield "gray8_clear.png", png(GRAY, 8, few, [chunk(b"tRNS", struct.pack(">H", 3))])
    yield "gray16_clear.png", png(GRAY, 16, few * 9000, [chunk(b"tRNS", struct.pack(">H", 9000))])
    yield "rgb8_clear.png", png(RGB, 8, few.repeat(3, -1), [chunk(b"tRNS", struct.pack(">3H", 2, 2, 2))])
    yield "rgba8_opaque.png", png(RGBA, 8, np.concatenate([values(8, 3), np.full((HEIGHT, WIDTH, 1), 255)], -1))
    yield "rgb8_interlaced.png", png(RGB, 8, interlaced=True)
    yield "gray16_interlaced.png", png(GRAY, 16, interlaced=True)
    yield "palette4_interlaced.png", png(PALETTE, 4, before=[palette(16)], interlaced=True)
    yield "rgba16_interlaced.png", png(RGBA, 16, interlaced=True)
    gamma = chunk(b"gAMA", struct.pack(">I", 100000))
    yield "gamma.png", png(RGB, 8, before=[gamma])
    yield "gamma16.png", png(RGB, 16, before=[gamma])
    yield "srgb.png", png(RGB, 8, before=[chunk(b"gAMA", struct.pack(">I", 45455)), chunk(b"sRGB", b"\0")])
    yield "white_point.png", png(RGB, 8, before=[chunk(b"cHRM", struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000))])
    yield "profile.png", png(RGB, 8, before=[chunk(b"iCCP", b"x\0\0" + zlib.compress(b"no profile"))])
    for orientation in range(1, 10):
        yield f"exif{orientation}.png", png(RGB, 8, before=[chunk(b"eXIf", exif(orientation))])
    yield "exif6_big.png", png(RGB, 8, before=[chunk(b"eXIf", exif(6, big=True))])
    yield "exif6_behind.png", png(RGB, 8, after=[chunk(b"eXIf", exif(6))])
    yield "xmp6.png", png(RGB, 8, before=[international(xmp(6))])
    yield "xmp8_packed.png", png(RGB, 8, before=[international(xmp(8, True), True)])
    yield "raw_profile3.png", png(RGB, 8, before=[raw_profile(b"Exif\0\0" + exif(3))])
    yield "exif6_xmp8.png", png(RGB, 8, before=[chunk(b"eXIf", exif(6)), international(xmp(8))])
    yield "exif_xmp8.png", png(RGB, 8, before=[chunk(b"eXIf", exif(6, tag=0x0128)), international(xmp(8))])
    yield "animated.png", saved("RGB", frames=2, format="PNG")
    yield "gray.jpg", jpeg("L")
    for name, how in [("444", dict(subsampling=0)), ("422", dict(subsampling=1)), ("420", dict(subsampling=2)), ("progressive", dict(progressive=True)), ("restart", dict(restart_marker_blocks=1))]:
        yield f"{name}.jpg", jpeg(**how)
    for orientation in (2, 5, 6, 8):
        yield f"exif{orientation}.jpg", jpeg(exif=b"Exif\0\0" + exif(orientation, big=orientation == 8))
    yield "xmp6.jpg", jpeg(xmp=xmp(6))
    yield "profile.jpg", jpeg(icc_profile=b"no profile")
    yield "cmyk.jpg", jpeg("CMYK")
    yield "ycck.jpg", with_transform(jpeg("CMYK"), 2)
    yield "cmyk_bare.jpg", with_transform(jpeg("CMYK"), None)
    yield "rgb.jpg", with_adobe(jpeg(subsampling=0), 0)
    yield "lossy.webp", webp(quality=80)
    yield "lossless.webp", webp(lossless=True)
    yield "alpha.webp", webp("RGBA", lossless=True, exact=True)
    yield "lossy_alpha.webp", webp("RGBA", quality=80, exact=True)
    yield "exif6.webp", webp(lossless=True, exif=exif(6))
    yield "xmp3.webp", webp(lossless=True, xmp=xmp(3))
    yield "profile.webp", webp(lossless=True, icc_profile=b"no profile")
    yield "animated.webp", webp(lossless=True, frames=2)
    yield "animated_alpha.webp", webp("RGBA", lossless=True, frames=2)


def opened(file):
    """As Pillow opens it, except that its 16-bit grays become 8-bit ones over the whole range: its own conversion makes white of all from 255."""
    picture = Image.open(io.BytesIO(file))
    if picture.mode != "I;16":
        return picture
    turned = ImageOps.exif_transpose(picture)
    return Image.fromarray(((np.asarray(turned).astype(np.int64) + 128) // 257).astype(np.uint8))


def webui(file):
    """A picture as A1111's API opens it: upright, and RGBA where a palette or colour has alpha for each entry."""
    picture = ImageOps.exif_transpose(opened(file))
    return picture.convert("RGBA") if picture.mode in ("RGB", "P") and isinstance(picture.info.get("transparency"), bytes) else picture


def webui_mask(file):
    picture = webui(file)
    if picture.mode == "RGBA" and picture.getextrema()[-1] != (255, 255):
        return picture.getchannel("A").point(lambda value: 255 if value > 128 else 0).convert("RGB")
    return picture.convert("RGB")


def webui_picture(file):
    picture = webui(file)
    if picture.mode == "RGBA":
        ground = Image.new("RGBA", picture.size, "#ffffff")
        ground.paste(picture, mask=picture)
        picture = ground
    return picture.convert("RGB")


def make():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    table = {}
    for name, file in files():
        (FOLDER / name).write_bytes(file)
        plain = load_image(opened(file))
        info = Image.open(io.BytesIO(file))
        entry = {"width": plain.width, "height": plain.height, "rgb": plain.tobytes().hex()}
        for key, picture in [("mask", webui_mask(file)), ("over_white", webui_picture(file))]:
            if picture.tobytes() != plain.tobytes():
                entry[key] = picture.tobytes().hex()
        if getattr(info, "is_animated", False):
            entry["animated"] = True
        if "icc_profile" in info.info:
            entry["profile"] = True
        table[name] = entry
    (EXPECTED / "pictures.json").write_text(json.dumps({
        "what": "8-bit RGB of the files in pictures/, by diffusers' load_image; mask and over_white: by A1111's rules for masks and for pictures to begin with, where these differ from it",
        "command": "scripts/fixtures pictures", "cases": table}, indent=0) + "\n")
    print(f"  {len(table)} files, {sum(f.stat().st_size for f in FOLDER.iterdir())} bytes")
