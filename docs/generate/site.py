"""A hook of mkdocs: the site has the generated pages, which lie in no file, and the pictures of the
top level, which the pages link to as GitHub does.
"""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from docs.generate import DOCS, PAGES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds each generated page, and each picture with the path that it has from docs/."""
    for name, made in PAGES.items():
        files.append(File.generated(config, name, content=made()))
    root = DOCS.parent
    for path in sorted((root / "screenshots").glob("*.svg")):
        name = path.relative_to(root).as_posix()
        # Unasked, mkdocs leaves out what begins with a dot.
        included = InclusionLevel.INCLUDED
        files.append(
            File(f"../{name}", str(DOCS), config.site_dir, True, dest_uri=name, inclusion=included)
        )
    return files
