"""What MkDocs calls while it builds the site.

- **Pages from outside of docs/**: the README is the first page; the changelog, the rules for contributors and
  the programs of ``examples/`` have pages, too. Links between files of the checkout lead to these pages.
- **The reference**: a page for each group of names in ``ledgerlog.__all__`` and for each other public module.
  So a new name is on it by itself.
- **The last look**: after the build, each public name must have an anchor.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from importlib import import_module
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

MOVED = {
    "README.md": "index.md",
    "docs/README.md": "documents.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "SECURITY.md": "project/SECURITY.md",
    "LICENSE": "project/LICENSE.md",
    "tests/README.md": "project/tests.md",
}
"""Files of the checkout and their pages."""

MODULES = {
    "ledgerlog.aio": "asyncio",
    "ledgerlog.blocking": "Without an event loop",
    "ledgerlog.spark": "Spark",
    "ledgerlog.testing": "Tests in the simulator",
    "ledgerlog.tracing": "Traces",
}
"""Public modules beside ``ledgerlog`` itself, with the titles of their pages."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def moved() -> dict[str, str]:
    """The pages of files of the checkout, by the paths of the files."""
    examples = {
        str(path.relative_to(ROOT)): f"examples/{path.stem}.md"
        for path in sorted((ROOT / "examples").glob("*.py"))
    }
    return {**MOVED, **examples, "examples": "examples/index.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the parts of the navigation that follow from the code."""
    assert config.nav is not None
    filled = {
        "Examples": sorted(path for path in moved().values() if path.startswith("examples/")),
        "Reference": [{title: path} for path, (title, _) in reference().items()],
    }
    for section in config.nav:
        for title in section.keys() & filled.keys():
            section[title] = filled[title]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, path in moved().items():
        folder, _, name = source.partition("/")
        if folder == "docs" and (there := files.get_file_from_path(name)) is not None:
            files.remove(there)
        files.append(File.generated(config, path, content=page_of(source)))
    for path, (_, content) in reference().items():
        files.append(File.generated(config, path, content=content))
    return files


def page_of(source: str) -> str:
    """Return the page of a file of the checkout."""
    path = ROOT / source
    if path.is_dir():
        items = "\n".join(f"- [{each.name}]({source}/{each.name})" for each in sorted(path.glob("*.py")))
        return f"# Examples\n\nPrograms to start from:\n\n{items}\n"
    text = path.read_text(encoding="utf-8")
    if source.endswith(".md"):
        return text
    language = "python" if source.endswith(".py") else "text"
    return f"# {path.name}\n\n```{language}\n{text}```\n"


def reference() -> dict[str, tuple[str, str]]:
    """The pages of the reference: their titles and contents by their paths."""
    pages: dict[str, tuple[str, str]] = {}
    for title, names in groups().items():
        head = f"# {title}\n\nThese names are in `ledgerlog`.\n"
        body = "\n".join(entry("ledgerlog", name) for name in names)
        pages[f"reference/{title.lower().replace(' ', '-')}.md"] = (title, head + body)
    for name, title in MODULES.items():
        found = import_module(name)
        summary, _, rest = (found.__doc__ or "").partition("\n\n")
        head = f"# {title}: `{name}`\n\n{summary}\n\n{rest}"
        body = "\n".join(entry(name, each) for each in found.__all__)
        pages[f"reference/{name}.md"] = (title, head + body)
    return pages


def entry(module: str, name: str) -> str:
    """Return what mkdocstrings expands to the reference of one name.

    A constructor is shown if its parameters are described. The others are for the library, which gives their
    objects out.
    """
    found = getattr(import_module(module), name)
    text = f"{found.__doc__}\n{getattr(found, '__init__', None).__doc__}"
    is_given_out = inspect.isclass(found) and "Args:" not in text
    options = "    options:\n      merge_init_into_class: false\n" if is_given_out else ""
    return f"\n::: {module}.{name}\n{options}"


def groups() -> dict[str, list[str]]:
    """The names in ``ledgerlog.__all__``, by the comments between them."""
    source = (ROOT / "ledgerlog" / "__init__.py").read_text(encoding="utf-8")
    listed = source.partition("__all__ = [\n")[2].partition("]\n")[0]
    found: dict[str, list[str]] = {}
    for group in listed.split("    # ")[1:]:
        title, _, names = group.partition("\n")
        found[title[0].upper() + title[1:]] = re.findall(r'"(\w+)"', names)
    return found


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links between files of the checkout lead to the pages of these files."""
    here = page.file.src_uri
    if here.startswith("reference/"):
        return markdown
    source = {path: source for source, path in moved().items()}.get(here, f"docs/{here}")

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        path = moved().get(target) or target.removeprefix("docs/")
        return posixpath.relpath(path, posixpath.dirname(here) or ".") + (link[2] or "")

    parts = _BLOCK.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(lead, part) for part in parts)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a reference that lacks a public name."""
    pages = "".join(
        path.read_text(encoding="utf-8") for path in Path(config.site_dir, "reference").glob("*.html")
    )
    named = {f"ledgerlog.{name}" for names in groups().values() for name in names}
    named |= {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__}
    lacking = sorted(name for name in named if f'id="{name}"' not in pages)
    if lacking:
        raise PluginError(f"the reference lacks {', '.join(lacking)}")
