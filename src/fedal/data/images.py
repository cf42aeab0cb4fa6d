"""A folder with one folder of images per class; for a public set, any folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedal.data.custom import by_schema, held_out_fifth
from fedal.data.dataset import Dataset, Floats, Pixels, normalise
from fedal.data.schema import Images, Schema, make_schema
from fedal.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
MAX_PIXELS = 1 << 26  # of one image; a small file can claim any size
GREY, COLOUR = ("1", "L"), ("RGB", "P", "CMYK", "YCbCr")


def read_image_folder(folder: Path, schema: Schema) -> Dataset:
    """The images of a folder with one folder per class; a class without a folder has no images."""
    inputs = _inputs(schema, folder)
    files: list[Path] = []
    labels: list[int] = []
    unknown = [each.name for each in _folders(folder) if each.name not in schema.classes]
    if unknown:
        raise DataError(
            f"{folder}: the folder {unknown[0]!r} is not one of the classes {', '.join(schema.classes[:20])}. Rename "
            "it, move it away, or draft a schema with this class for all sites."
        )
    for number, name in enumerate(schema.classes):
        found = _images(folder / name) if (folder / name).is_dir() else []
        files += found
        labels += [number] * len(found)
    if not files:
        raise DataError(f"{folder}: no images in folders named after the classes {', '.join(schema.classes[:20])}.")
    y = np.array(labels, np.int64)
    held = held_out_fifth(y)
    if not held.any():
        raise DataError(f"{folder}: no class has 5 images, so none can be held out for testing. Add images.")
    resized: list[Path] = []
    train, test = (
        normalise(_pixels([files[i] for i in np.flatnonzero(part)], inputs, resized), inputs.mean, inputs.std)
        for part in (~held, held)
    )
    note = f"{folder}: {len(resized):,} images cropped and resized to {inputs.width}x{inputs.height} pixels"
    name, notes = folder.resolve().name, (note,) if resized else ()
    return by_schema(schema, name, train, test, y, held, provenance=f"custom folder {name}", layout="chw", notes=notes)


def count_images(folder: Path) -> dict[str, int]:
    """folder -> images in it, for the folder itself (.) and those inside."""
    counts = {".": len(_images(folder))} | {each.name: len(_images(each)) for each in _folders(folder)}
    return {name: count for name, count in counts.items() if count or name != "."}


def read_public_images(folder: Path, schema: Schema) -> Floats:
    """All images in a folder and its folders, whose names are ignored."""
    inputs = _inputs(schema, folder)
    return normalise(_pixels(_all_images(folder), inputs, []), inputs.mean, inputs.std)


def draft_images(
    folder: Path,
    classes: Sequence[str],
    *,
    positive: str | None = None,
    size: tuple[int, int] | None = None,
    channels: Literal[1, 3] | None = None,
) -> Schema:
    """A schema for images like these public ones; `size` is (height, width), by default that of all of them."""
    files = _all_images(folder)
    height, width = size or _common_size(files)
    found = channels or _common_channels(files)
    plain = Images(height=height, width=width, channels=found, mean=(0.0,) * found, std=(1.0,) * found)
    shares = normalise(_pixels(files, plain, []), plain.mean, plain.std)
    mean = tuple(float(value) for value in shares.mean((0, 2, 3), np.float64))
    std = tuple(float(value) or 1.0 for value in shares.std((0, 2, 3), np.float64))
    inputs = plain.model_copy(update={"mean": mean, "std": std})
    return make_schema(inputs=inputs.model_dump(), classes=tuple(classes), positive=positive)


def _inputs(schema: Schema, folder: Path) -> Images:
    if not isinstance(schema.inputs, Images):
        raise DataError(f"{folder}: a folder of images; the schema describes {schema.inputs.kind}.")
    return schema.inputs


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    """The image files of one folder, sorted by name; hidden files are ignored."""
    found = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    return [each for each in found if each.suffix.lower() in SUFFIXES and each.is_file()]


def _all_images(folder: Path) -> list[Path]:
    found = _images(folder) + [file for each in _folders(folder) for file in _images(each)]
    if not found:
        raise DataError(f"{folder}: no images ({', '.join(SUFFIXES)}) in it or in its folders.")
    return found


def _common_size(files: Sequence[Path]) -> tuple[int, int]:
    first: tuple[int, int] | None = None
    for file, image in _opened(files):
        first = first or (image.height, image.width)
        if (image.height, image.width) != first:
            raise DataError(
                f"{file}: {image.width}x{image.height} pixels; {files[0]} has {first[1]}x{first[0]}. Choose the size "
                "to which all are resized, for instance: --size 32"
            )
    assert first is not None
    return first


def _common_channels(files: Sequence[Path]) -> Literal[1, 3]:
    first: bool | None = None
    for file, image in _opened(files):
        is_grey = image.mode in GREY
        first = is_grey if first is None else first
        if is_grey != first:
            raise DataError(
                f"{file}: {'grey' if is_grey else 'colour'}; {files[0]} is {'grey' if first else 'colour'}. Choose: "
                "--channels 3 gives grey images three equal channels."
            )
    return 1 if first else 3


def _opened(files: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """Each image, upright, of a mode that can be converted; raises DataError for any other file."""
    from PIL import Image, ImageOps

    for file in files:
        try:
            with Image.open(file) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise DataError(
                        f"{file}: {image.width:,}x{image.height:,} pixels; the limit is {MAX_PIXELS:,} in all."
                    )
                if image.mode not in GREY + COLOUR or "transparency" in image.info:
                    raise DataError(
                        f"{file}: image mode {image.mode}; expected grey or colour with 8 bits and no transparency. "
                        "Save it as JPEG."
                    )
                yield file, ImageOps.exif_transpose(image)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{file}: not an intact image ({str(error)[:100]}). Replace or remove it.") from None


def _pixels(files: Sequence[Path], inputs: Images, resized: list[Path]) -> Pixels:
    """The images as the schema wants them; adds those of another size to `resized`.  -> (n, C, H, W)"""
    from PIL import Image, ImageOps

    pixels = np.empty((len(files), inputs.channels, inputs.height, inputs.width), np.uint8)
    for i, (file, image) in enumerate(_opened(files)):
        if inputs.channels == 1 and image.mode not in GREY:
            raise DataError(f"{file}: a colour image; this federation's images are grey. Convert or remove it.")
        if image.size != (inputs.width, inputs.height):
            resized.append(file)
        fitted = image.convert("L" if inputs.channels == 1 else "RGB")
        fitted = ImageOps.fit(fitted, (inputs.width, inputs.height), Image.Resampling.BILINEAR)
        pixels[i] = np.asarray(fitted).reshape(inputs.height, inputs.width, inputs.channels).transpose(2, 0, 1)
    return pixels
