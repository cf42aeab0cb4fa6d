"""Links to files of the repository lead to pages of this site that show them, so the site is whole without network.

A folder becomes a page with links to its files. What autodoc describes gets a link to its lines.
"""

from __future__ import annotations

import importlib
import inspect
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PREFIX = "repository/"
Links = dict[str, set[str]]  # page -> the files and folders that it links to


def _links(env: BuildEnvironment) -> Links:
    if not hasattr(env, "fedal_links"):
        env.fedal_links = {}  # type: ignore[attr-defined]
    found: Links = env.fedal_links  # type: ignore[attr-defined]
    return found


def _path(env: BuildEnvironment, docname: str, target: str) -> str | None:
    """Where a link of a page leads in the repository; None if nothing is there."""
    root = Path(env.srcdir).resolve()
    path = (root / docname).parent.joinpath(target.partition("#")[0]).resolve()
    return path.relative_to(root).as_posix() if path.exists() and path.is_relative_to(root) else None


def _reference(app: Sphinx, docname: str, path: str, link: nodes.Element, anchor: str = "") -> nodes.reference:
    _links(app.env).setdefault(docname, set()).add(path)
    uri = app.builder.get_relative_uri(docname, PREFIX + path)
    reference = nodes.reference("", "", internal=True, refuri=uri + anchor)
    reference += link.children
    return reference


def _link(app: Sphinx, doctree: nodes.document) -> None:
    """MyST makes a link to a file a download, and knows nothing of folders; reading is what a reader wants."""
    docname = app.env.current_document.docname
    for node in list(doctree.findall(addnodes.download_reference)):
        path = _path(app.env, docname, node["reftarget"])
        if path is not None and _text(Path(app.srcdir) / path) is not None:
            node.replace_self(_reference(app, docname, path, node))
    for link in list(doctree.findall(addnodes.pending_xref)):
        path = _path(app.env, docname, link["reftarget"]) if link["reftype"] == "myst" else None
        if path is not None and (Path(app.srcdir) / path).is_dir():
            link.replace_self(_reference(app, docname, path, link))


def _link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """`[source]` beside every signature of a class or function."""
    docname = app.env.current_document.docname
    for signature in doctree.findall(addnodes.desc_signature):
        found = _position(signature.get("module"), signature.get("fullname", ""))
        if found is not None and found[0].is_relative_to(app.srcdir):
            text = nodes.inline("", "", nodes.inline("", "[source]", classes=["viewcode-link"]))
            path = found[0].relative_to(app.srcdir).as_posix()
            signature += _reference(app, docname, path, text, f"#L-{found[1]}")


def _position(module: str | None, name: str) -> tuple[Path, int] | None:
    """The file and the line where something is defined; None for what has no lines of its own, such as a value."""
    if not module:
        return None
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = inspect.getattr_static(value, part, None) if inspect.isclass(value) else getattr(value, part, None)
    value = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    try:
        return Path(inspect.getsourcefile(value) or ""), inspect.getsourcelines(value)[1]
    except (TypeError, OSError):
        return None


def _forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _links(env).pop(docname, None)


def _write(app: Sphinx, error: Exception | None) -> None:
    """The pages. They are written here because the theme would draw all navigation on each: half of a build's time."""
    if error is not None or app.builder.name != "html":
        return
    root = Path(app.srcdir)
    wanted = {path for linked in _links(app.env).values() for path in linked}
    for folder in [path for path in wanted if (root / path).is_dir()]:
        wanted |= {file.relative_to(root).as_posix() for file in _files(root / folder)}
    template = (Path(__file__).parent / "_templates" / "repository.html").read_text(encoding="utf-8")
    for path in wanted:
        body = _folder(root / path) if (root / path).is_dir() else _file(root / path)
        page = Path(app.outdir) / f"{PREFIX}{path}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        top = "../" * (PREFIX + path).count("/")
        page.write_text(Template(template).substitute(path=escape(path), body=body, top=top), encoding="utf-8")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and _text(path) is not None)


def _folder(folder: Path) -> str:
    items = [f'<li><a href="{folder.name}/{file.name}.html">{escape(file.name)}</a></li>' for file in _files(folder)]
    return f"<ul>{''.join(items)}</ul>"


def _text(path: Path) -> str | None:
    """What a file says; None for one that is not text, such as a picture."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _file(path: Path) -> str:
    text = _text(path) or ""
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return str(highlight(text, lexer, HtmlFormatter(lineanchors="L")))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", _link, priority=400)  # before downloads are collected
    app.connect("doctree-read", _link_sources)
    app.connect("env-purge-doc", _forget)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": False}
