"""The description on the package index: README.md with links that work there.

An index shows README.md without the files around it, so a picture or a link to one of them leads nowhere. If
`[project.urls]` in pyproject.toml has a `Repository` (on GitHub), they lead to it, at the version's tag. Without one,
a link is left as its text, and paragraphs of nothing but links or pictures go.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](path) or ![text](path), where the path is not an address and not a place on the page.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_NOWHERE = "The guides and notebooks are in the folder `docs` of the source distribution."


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(text, repository, metadata["version"]),
        }


def description(readme: str, repository: str | None, version: str) -> str:
    """README.md for an index."""
    if repository:
        place = f"{repository.rstrip('/')}/{{}}/v{version}/"
        return _LINK.sub(
            lambda link: f"{link[1]}[{link[2]}]({place.format('raw' if link[1] else 'blob')}{link[3]})", readme
        )
    paragraphs = []
    for paragraph in readme.split("\n\n"):
        if re.search(r"\w", _LINK.sub("", paragraph)):
            paragraphs.append(_LINK.sub(lambda link: "" if link[1] else link[2], paragraph))
        elif not paragraph.startswith("!"):
            paragraphs.append(_NOWHERE)
    return "\n\n".join(paragraphs)
