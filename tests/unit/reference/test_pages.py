"""The generated pages are up to date, explain everything that they list, and their links lead somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

import sandlot
import sandlot.client
from sandlot.api.openapi import schema, websockets
from sandlot.cli.main import app
from sandlot.client.result import CommandFailed
from sandlot.client.sync.blocking import Facade
from sandlot.domain.errors import FILE_REASONS, FileProblem
from sandlot.domain.history.details import DETAILS
from sandlot.domain.history.events import EventKind
from sandlot.reference import sdk_page
from sandlot.reference.classes import methods_of
from sandlot.reference.docstrings import explained, first_sentence, own_docstring
from sandlot.reference.errors_page import WHAT_TO_DO
from sandlot.reference.markdown import WIDTH, anchor
from sandlot.reference.pages import PAGES
from sandlot.reference.schemas import explained_schema
from sandlot.reference.values import explained_class, fields_of, is_value, properties_of
from sandlot.wire.error_codes import STATUS

FOLDER = Path(__file__).parents[3] / "docs/reference"
MARKDOWN = sorted(name for name in PAGES if name.endswith(".md"))
OURS = sorted(set(MARKDOWN) - {"settings.md"})


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def headings(text: str) -> list[str]:
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.+)$", without_code, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert text_of(name) == PAGES[name](), f"docs/reference/{name} is out of date; run: make docs"


@pytest.mark.parametrize("name", OURS)
def test_every_heading_has_a_link_target_of_its_own(name: str) -> None:
    twice = [each for each, count in Counter(map(anchor, headings(text_of(name)))).items() if count > 1]
    assert twice == []


@pytest.mark.parametrize("name", OURS)
def test_every_link_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(name)):
        path, _, fragment = target.partition("#")
        page = (FOLDER / path).resolve() if path else FOLDER / name
        assert page.exists(), target
        if fragment:
            assert fragment in map(anchor, headings(page.read_text(encoding="utf-8"))), target


@pytest.mark.parametrize("name", OURS)
def test_prose_is_wrapped(name: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(name), flags=re.DOTALL | re.MULTILINE).splitlines()
    long = [line for line in prose if len(line) > WIDTH and not line.startswith(("|", "#"))]
    assert [line for line in long if " " in re.sub(r"`[^`]*`", "", line).strip()] == []


# --- what is listed is explained -----------------------------------------------------------------


def test_every_command_argument_and_option_has_help() -> None:
    def check(name: str, command: Any) -> None:
        assert command.help, f"{name} has no help"
        for parameter in command.params:
            if isinstance(parameter, TyperArgument | TyperOption) and not parameter.hidden:
                assert parameter.help, f"{name}: {parameter.name} has no help"
        if isinstance(command, TyperGroup):
            for own, below in command.commands.items():
                check(f"{name} {own}", below)

    check("sandlot", get_command(app))


def test_every_public_name_is_on_the_sdk_page() -> None:
    shown = text_of("sdk.md")
    assert [name for name in sandlot.__all__ if f"`{name}`" not in shown] == []


def classes_of_the_sdk() -> dict[str, type]:
    """What a program can get hold of: the blocking classes, found by the modules and not by a list, and their twins."""
    found = {name: getattr(sandlot, name) for name in (*sdk_page.RESULTS, *sdk_page.CLASSIC)}
    for module in walk_packages(sandlot.client.__path__, "sandlot.client."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(kind) and issubclass(kind, Facade) and kind is not Facade and name[0] != "_":
                found |= {name: kind, f"Async{name}": getattr(sandlot, f"Async{name}")}
    return found


def test_every_class_of_the_sdk_can_be_imported_and_has_a_section() -> None:
    classes = classes_of_the_sdk()
    assert len(classes) >= 2 * len(sdk_page.PAIRS)
    assert {name for name in classes if name not in sandlot.__all__} == set()
    shown = headings(text_of("sdk.md"))
    assert {name for name in classes if name.removeprefix("Async") not in shown} == set()


def members_of_the_sdk() -> list[tuple[str, str, Any]]:
    """Class, name and member: methods and properties, also those of a class's parts in other files."""
    return [
        (name, each, getattr(kind, each))
        for name, kind in classes_of_the_sdk().items()
        for part in kind.__mro__
        for each, declared in vars(part).items()
        if part.__module__.startswith("sandlot.client.") and part is not Facade and not each.startswith("_")
        if isinstance(declared, property | cached_property) or callable(getattr(kind, each))
    ]


def test_every_method_of_the_sdk_has_its_signature_and_its_first_sentence() -> None:
    """Under the name of the blocking class, for both forms."""
    sections = re.split(r"^#{2,4} ", text_of("sdk.md"), flags=re.MULTILINE)
    by_heading = {section.partition("\n")[0]: " ".join(section.split()) for section in sections}
    missing, methods = [], 0
    for name, each, member in members_of_the_sdk():
        owner = name.removeprefix("Async")
        if not callable(member):
            shown = f"| `{each}` |" in by_heading[owner]
        else:
            methods += 1
            section = by_heading.get(f"{owner}.{each}") or by_heading.get(f"{name}.{each}", "")
            words = plain(" ".join(first_sentence(own_docstring(member)).split()))
            shown = f"```python {each}(" in section and words in plain(section)
        if not shown:
            missing.append(f"{name}.{each}")
    assert missing == []
    assert methods > 150


def plain(text: str) -> str:
    """Without what is code or a link there, and without the prefix by which docstrings name a twin."""
    return re.sub(r"\]\([^)]*\)|[`\[]|Async(?=[A-Z])", "", text)


def test_every_class_method_and_property_of_the_sdk_has_a_docstring() -> None:
    names = (*sdk_page.PAIRS, *sdk_page.RESULTS, *sdk_page.CLASSIC)
    for kind in (getattr(sandlot, name) for name in names):
        assert own_docstring(kind), kind
        for method in methods_of(kind):
            assert own_docstring(method.function), f"{kind.__name__}.{method.name}"
        for name, _, docstring in properties_of(kind):
            assert docstring, f"{kind.__name__}.{name}"


def test_every_field_of_a_public_value_is_explained() -> None:
    values = [value for name in sandlot.__all__ if is_value(value := getattr(sandlot, name))]
    for kind in (*values, *sdk_page.OPTIONS.values()):
        missing = set(fields_of(kind)) - explained_class(kind).meanings.keys()
        assert not missing, f"{kind.__name__}: {missing}"


@pytest.mark.parametrize("kind", [*STATUS, CommandFailed], ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_means_and_what_to_do(kind: type) -> None:
    meaning, _, advice = own_docstring(kind).partition(WHAT_TO_DO)
    assert meaning.strip()
    assert advice.strip(), f"{kind.__name__} does not say what to do"


def test_every_reason_of_a_file_problem_is_explained() -> None:
    assert explained(own_docstring(FileProblem), FILE_REASONS).meanings.keys() == FILE_REASONS


def test_every_route_and_what_v1_takes_is_explained() -> None:
    api = schema()
    types = api["components"]["schemas"]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), f"{method} {path} has no docstring"
            name = operation["operationId"].replace("_", " ")
            assert operation["summary"].lower() != name, (
                f"{method} {path}: the summary is the function's name"
            )
            assert {"400", "401", "403", "404", "422", "500", "503"} <= operation["responses"].keys()
            if not path.startswith("/v1/"):
                continue
            for parameter in operation.get("parameters", ()):
                assert parameter["in"] == "path" or parameter.get("description"), (path, parameter["name"])
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if "$ref" in content["schema"]:
                    name = content["schema"]["$ref"].rpartition("/")[2]
                    missing = set(types[name]["properties"]) - explained_schema(types[name]).meanings.keys()
                    assert not missing, f"{name}: {missing}"


def test_every_tag_is_described() -> None:
    api = schema()
    used = {
        tag for operations in api["paths"].values() for each in operations.values() for tag in each["tags"]
    }
    assert used == {tag["name"] for tag in api["tags"]}


def test_websockets_are_on_the_http_page() -> None:
    assert websockets()
    for path, docstring in websockets().items():
        assert docstring
        assert f"### `WebSocket {path}`" in text_of("http.md")


def test_the_events_page_has_every_kind_with_its_meaning_and_details() -> None:
    text = text_of("events.md")
    assert DETAILS.keys() == set(EventKind)
    assert re.findall(r"^### `(.+)`$", text, re.MULTILINE) == [kind.value for kind in EventKind]
    for kind, details in DETAILS.items():
        section = text.partition(f"### `{kind.value}`\n")[2].partition("\n### ")[0]
        assert re.findall(r"^\| `(\w+)` \| .+ \|$", section, re.MULTILINE) == list(details)
        assert re.match(r"\n[A-Z].+\.\n", section), section
