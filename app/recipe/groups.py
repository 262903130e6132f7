"""The section `param_groups` of a recipe: the argument of that name, with the line of each problem."""

from __future__ import annotations

from hexloop.app.arguments.documents import Document, KeyPath, SourceLocation
from hexloop.domain.parameter_rules import read_rules
from hexloop.domain.wording import RefusalError, problem

PARAM_GROUPS = "param_groups"
"""The key of the section, and the name of the argument."""


def read_groups(document: Document, arguments: str) -> None:
    """Put the section among the arguments, which are at the key `arguments`, and check each rule by itself.

    Problems are added to the document's; an invalid section is then left out of the arguments.
    """
    section, there = document.at((PARAM_GROUPS,)), (arguments, PARAM_GROUPS)
    source: KeyPath = there
    if section is not None:
        source = (PARAM_GROUPS,)
        if document.at(there) is not None:
            sentence = f"{PARAM_GROUPS} is given as a section and in {arguments}; remove one of them."
            document.problems.append(document.located([source, there], sentence))
            return
        document.put(there, section, document.locations.get(source) or SourceLocation(PARAM_GROUPS))
    given = document.at(there)
    if given is None or isinstance(given, str):  # JSON of the command line has no lines
        return
    _, faults = read_rules(given)
    for path, refusal in faults:
        document.problems.append(document.located([(*source, *path)], _sentence(document, source, path, refusal)))
    if faults:
        document.put(there, None, document.locations.get(source) or SourceLocation(PARAM_GROUPS))


def _sentence(document: Document, source: KeyPath, path: KeyPath, refusal: RefusalError) -> str:
    name = ".".join(map(str, (PARAM_GROUPS, *path)))
    return problem({name: document.at((*source, *path))}, refusal)
