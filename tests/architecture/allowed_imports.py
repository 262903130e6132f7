"""An import-linter contract that names what a package may import, instead of what it may not."""

from __future__ import annotations

import sys
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImportsContract(Contract):
    """A package imports the standard library and what is listed, and nothing else.

    source: the package whose imports are checked, every module below it included.
    allowed: modules that it may import, each with all that is below it; a package above one that is listed is not.
    """

    type_name = "allowed_imports"

    source = fields.StringField()
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect the imports that are not allowed, with the lines that make them."""
        source, allowed = cast(str, self.source), cast(set[str], self.allowed)
        prefixes = tuple(f"{module}." for module in (*allowed, *sys.stdlib_module_names))
        violations = [
            (importer, imported, graph.get_import_details(importer=importer, imported=imported))
            for importer in sorted({source, *graph.find_descendants(source)})
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not f"{imported}.".startswith(prefixes)
        ]
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that is not allowed."""
        for importer, imported, details in check.metadata["violations"]:
            lines = ", ".join(f"l.{detail['line_number']}" for detail in details)
            output.print_error(f"{importer} is not allowed to import {imported} ({lines})")
