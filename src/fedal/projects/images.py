"""`fedal init images`: three sites with folders of handwritten digits, each with its own share of the ten classes.

The digits are those of scikit-learn (1,797 grey images of 8x8 pixels), so nothing is downloaded.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from fedal.data.drafting import draft_schema
from fedal.projects.project import SITES, Project, write_texts
from fedal.projects.texts import COMPARISON, DEPLOY

CLASSES = tuple("0123456789")
FAVOURITES = {"north": (0, 1, 2, 3), "south": (3, 4, 5, 6), "east": (6, 7, 8, 9)}
RARE = 6  # of the other sites' digits, a site has one in this many

FEDERATION = """
# Three sites with different digits. Nothing but outputs on the images in public/ leaves a site.
method = "fedal"
iterations = 200
public = "public"                # images without labels, which all sites may see
schema_file = "schema.json"      # made by: fedal schema public --classes 0,1,2,3,4,5,6,7,8,9
metrics = ["accuracy", "balanced_accuracy", "log_loss"]

[[clients]]
name = "north"
data = "north"
model = "my_models:net"

[[clients]]
name = "south"
data = "south"
model = "my_models:wide_net"

[[clients]]
name = "east"
data = "east"
model = "cnn-small"
"""

MODELS = '''
"""The sites' own models. A factory gets the shape of an image and the number of classes; any torch module will do."""

from torch import nn


def net(input_shape, n_classes, width=16):
    """Two convolutions and a linear layer."""
    channels, height, size = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(width * (height // 2) * (size // 2), n_classes),
    )


def wide_net(input_shape, n_classes):
    return net(input_shape, n_classes, width=32)
'''

README = """
# Three sites with images

Each site mostly has four of the ten digits, in one folder per class, and its own kind of network. They train together
without sharing images or models: only outputs on the images in `public` leave a site.

Data: {origin}.

    fedal run                                    # a few minutes at most; the last lines say who gained
    fedal data inspect north --schema-file schema.json --public public

Put your own images in their place: folders named after your classes, JPEG or PNG, of any size. Then remove
`schema.json` and draft a new one: `fedal schema public --classes cat,dog --size 32`.

`federation.toml` is the whole setup: method, data, models, and the comparison with local-only training. Other methods
are in `fedal methods`, other settings in `fedal settings`. `my_models.py` holds the sites' own models.
"""


def _write(folder: Path) -> str:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.minimum(digits.images * 16, 255).astype(np.uint8)
    seen: Counter[tuple[str, int]] = Counter()
    for i, (image, digit) in enumerate(zip(pixels, map(int, digits.target), strict=True)):
        if i % 4 == 0:
            path = folder / "public" / f"{i:04}.png"
        else:
            site = SITES[i % 3]
            seen[site, digit] += 1
            if digit not in FAVOURITES[site] and seen[site, digit] % RARE:
                continue
            path = folder / site / str(digit) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    draft_schema(folder / "public", CLASSES).save(folder / "schema.json")
    origin = "handwritten digits of scikit-learn (UCI, CC BY 4.0)"
    write_texts(
        folder,
        federation=FEDERATION + COMPARISON.format(name="images"),
        models=MODELS,
        readme=README.format(origin=origin) + DEPLOY.format(name="images", data="north", model="my_models:net"),
    )
    return origin


IMAGES = Project("three sites with folders of images; your own torch model", _write)
