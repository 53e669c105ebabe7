"""A contract of import-linter: the cycles that are there may become fewer, never more.

`[tool.importlinter]` in pyproject.toml names it `cycles_at_most`. A package whose modules import
each other in a circle is counted by the imports that would have to go, those for types included.
"""

from typing import cast

from grimp import ImportGraph
from importlinter.application import output
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.domain import fields
from importlinter.domain.contract import ContractCheck


class CyclesAtMost(AcyclicSiblingsContract):
    """Siblings form no cycle, except so many imports of a package: `allowed`."""

    type_name = "cycles_at_most"

    allowed = fields.ListField(subfield=fields.StringField())  # `urds.dat 30`

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Return the packages that break the contract; a count that is too high is a warning."""
        checked = super().check(graph, verbose)
        found: dict[str, set[tuple[str, str]]] = checked.metadata["cycle_breakers_by_package"]
        allowed = {
            name: int(count) for name, count in map(str.split, cast(list[str], self.allowed))
        }
        more = {
            name: imports for name, imports in found.items() if len(imports) > allowed.get(name, 0)
        }
        checked.kept = not more
        checked.metadata["cycle_breakers_by_package"] = more
        checked.metadata["summaries"] = self._build_summaries(more)
        checked.metadata["allowed"] = allowed
        checked.warnings += [
            f"{name}: {len(found.get(name, ()))} imports close cycles, lower the {count} allowed"
            for name, count in allowed.items()
            if len(found.get(name, ())) < count
        ]
        return checked

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print which packages have more cycles than before, and imports that close them."""
        for name, imports in sorted(check.metadata["cycle_breakers_by_package"].items()):
            allowed = check.metadata["allowed"].get(name, 0)
            output.print_error(f"{name}: {len(imports)} imports close cycles, not {allowed}.")
        output.new_line()
        super().render_broken_contract(check)
