"""A contract for import-linter (`make lint`): a private module, `_x.py`, is imported only inside its own package."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PrivateModules(Contract):  # type: ignore[misc]
    """What crosses a package's border is exported by its `__init__`."""

    packages = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = []
        for module in sorted(graph.modules):
            owner = _owner(module)
            if owner is None or module.split(".")[0] not in self.packages:
                continue
            importers = graph.find_modules_that_directly_import(module)
            broken += [(one, module) for one in sorted(importers) if one != owner and not one.startswith(f"{owner}.")]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, module in check.metadata["broken"]:
            output.print(f"{importer} imports {module}, which is private to {_owner(module)}.", color="red")


def _owner(module: str) -> str | None:
    """The package that a private module belongs to; `None` for a public one."""
    parts = module.split(".")
    for index, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:index])
    return None
