"""The documentation site: `make docs` builds it from the Markdown of this repository, without network.

The source folder is the repository itself, so that every link which works on GitHub works here, and the address of a
page is its path: docs/theory.md becomes docs/theory.html. What is generated from the code is in from_code/.

The theme is furo: plain HTML and CSS, system fonts, search in the page's own JavaScript, nothing from a CDN, and one
theme for desk, phone and dark screens. pydata-sphinx-theme was the other candidate; it brings icon fonts and Bootstrap,
which this site does not need.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]

_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project, release = _project["name"], _project["version"]
html_title = f"{project} {release}"
root_doc = "docs/site/index"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.suffix != ".md" and path.name != "docs"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
extensions += ["filling", "docstrings", "repository", "mathml"]  # of this folder
myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

highlight_language = "text"  # of blocks that name none

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100

html_theme = "furo"
html_theme_options: dict[str, list[str]] = {
    "top_of_page_buttons": []
}  # they would lead to GitHub, the pages do not need it
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "forward.html"}
templates_path = ["_templates"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"
html_domain_indices = False
