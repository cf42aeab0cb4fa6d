"""Reads an image file as RGB bytes; raises an error that names a damaged or unexpected image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedal.data.dataset import Pixels
from fedal.errors import DataError


def read_image(path: Path, *, size: tuple[int, int], resize_to: int | None = None) -> Pixels:
    """The image, which must be `size` (width, height); with `resize_to`, its centre square, scaled to that size.

    The size is checked before decoding, so an image made to exhaust memory is rejected.  -> (H, W, 3)
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.size != size:
                raise DataError("{}: an image of {}x{} pixels; expected {}x{}.".format(path, *image.size, *size))
            rgb = image.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"{path}: this image is missing. Unpack the publisher's archive again.") from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: damaged image ({error}). Unpack the publisher's archive again.") from error
    if resize_to is not None:
        width, height = size
        side = min(size)
        left, top = (width - side) // 2, (height - side) // 2
        square = (left, top, left + side, top + side)
        rgb = rgb.resize((resize_to, resize_to), Image.Resampling.BILINEAR, box=square)
    return np.asarray(rgb)
