"""The registry: environments, tools, prompts, agents and policies in YAML, read into domain values.

    registry/environments/*.yaml   how a sandbox is made; these become recipes
    registry/tools/*.yaml          what an agent can be offered, with a JSON schema of its parameters
    registry/prompts/*.yaml        text that tells a model how to work in a sandbox
    registry/agents/*.yaml         which environment, tools and prompt go together
    registry/policies/*.yaml       which commands are allowed, need approval, or are denied
    registry/schema/*.json         what each of these files may contain

The shipped registry is read first. The operator's own folder adds entries and replaces those of the
same name. The registry contains no logic, and every error names the file and the place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match

from sandlot.config.packaged import packaged_folder
from sandlot.config.registry.recipes import RecipeDefaults, recipe_of
from sandlot.config.registry.yaml_files import problem, read_yaml
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.service import Catalogue, EnvironmentInfo, RegistryEntry
from sandlot.domain.text.suggestions import did_you_mean

KINDS = ("environments", "tools", "prompts", "agents", "policies")
MAX_FILES = 1000  # per folder


@dataclass(frozen=True, slots=True)
class Registry:
    recipes: Mapping[str, Recipe]
    catalogue: Catalogue
    policies: Mapping[str, CommandPolicy]
    # The environments as their files declare them.
    environments: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    document: Mapping[str, Any]


@dataclass(slots=True)
class _Kind:
    validator: Draft202012Validator
    entries: dict[str, _Entry] = field(default_factory=dict)


def load_registry(
    extra: Path | None = None, *, defaults: RecipeDefaults, built: Path | None = None
) -> Registry:
    """``built``: a folder with environments that clients have built. All others of a name come first."""
    shipped = packaged_folder("registry")
    kinds = {kind: _Kind(_validator(shipped / "schema" / f"{kind}.json")) for kind in KINDS}
    if built is not None:
        _read_folder(built, {"environments": kinds["environments"]})
    _read_folder(shipped, kinds)
    if extra is not None:
        if not extra.is_dir():
            raise InvalidRequest(
                f"The registry folder {extra} does not exist. Create it with any of the subfolders "
                f"{_folders()}."
            )
        if not any((extra / kind).is_dir() for kind in KINDS):
            raise InvalidRequest(f"The registry folder {extra} has none of the subfolders {_folders()}.")
        _read_folder(extra, kinds)
    _check_references(kinds)
    policies = {name: _policy(entry) for name, entry in kinds["policies"].entries.items()}
    recipes = {
        name: _recipe(entry, defaults, policies)
        for name, entry in sorted(kinds["environments"].entries.items())
    }
    declared = {name: entry.document for name, entry in kinds["environments"].entries.items()}
    return Registry(recipes, _catalogue(recipes, kinds), policies, declared)


def _folders() -> str:
    return ", ".join(f"{kind}/" for kind in KINDS)


def _validator(schema: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema.read_text("utf-8")))


# --- files --------------------------------------------------------------------------------------


def _read_folder(folder: Path, kinds: Mapping[str, _Kind]) -> None:
    for folder_name, kind in kinds.items():
        found: dict[str, _Entry] = {}
        for file in _yaml_files(folder / folder_name):
            document = _validate(file, read_yaml(file), kind.validator)
            name = document["name"]
            if name in found:
                raise problem(
                    file, "name", f"{name} is also declared in {found[name].file.name}. Rename one of them."
                )
            found[name] = _Entry(file, document)
        kind.entries.update(found)


def _yaml_files(folder: Path) -> Iterator[Path]:
    files = sorted(path for path in folder.glob("*") if path.suffix in (".yaml", ".yml"))
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"{folder} has more than {MAX_FILES} files.")
    yield from files


def _validate(file: Path, document: Any, validator: Draft202012Validator) -> Mapping[str, Any]:
    error = best_match(validator.iter_errors(document))
    if error is not None:
        raise problem(file, _place(error), error.message[:300] + _hint(error))
    assert isinstance(document, dict)  # the schema requires it
    if "parameters" in document:
        try:
            Draft202012Validator.check_schema(document["parameters"])
        except SchemaError as wrong:
            where = ".".join(["parameters", *map(str, wrong.path)])
            raise problem(file, where, f"not a valid JSON schema: {wrong.message[:300]}") from wrong
    return document


def _hint(error: ValidationError) -> str:
    """The key that an unknown one was probably meant to be."""
    schema, document = error.schema, error.instance
    if error.validator != "additionalProperties" or not (
        isinstance(schema, dict) and isinstance(document, dict)
    ):
        return ""
    known = schema.get("properties", {})
    return next((did_you_mean(str(key)[:80], known) for key in document if key not in known), "")


def _place(error: ValidationError) -> str:
    return ".".join(map(str, error.absolute_path)) or "the whole file"


# --- conversion to the domain ---------------------------------------------------------------------


def _check_references(kinds: Mapping[str, _Kind]) -> None:
    """Check that what agents and environments name exists."""
    for entry in kinds["agents"].entries.values():
        document = entry.document
        references = [("environment", "environments", document.get("environment"))]
        references += [("prompt", "prompts", document.get("prompt"))]
        references += [(f"tools.{i}", "tools", name) for i, name in enumerate(document.get("tools", ()))]
        _check_entry(entry, references, kinds)
    for entry in kinds["environments"].entries.values():
        _check_entry(entry, [("policy", "policies", entry.document.get("policy"))], kinds)


def _check_entry(
    entry: _Entry, references: Sequence[tuple[str, str, str | None]], kinds: Mapping[str, _Kind]
) -> None:
    for place, kind, name in references:
        entries = kinds[kind].entries
        if name is not None and name not in entries:
            hint, known = did_you_mean(name, entries), ", ".join(sorted(entries))
            raise problem(
                entry.file, place, f"{name} is not in the registry's {kind}.{hint} Available: {known}."
            )


def _policy(entry: _Entry) -> CommandPolicy:
    try:
        return CommandPolicy.of(entry.document)
    except InvalidRequest as error:
        raise InvalidRequest(f"{entry.file}: {error.message}", details={"file": str(entry.file)}) from error


def _recipe(entry: _Entry, defaults: RecipeDefaults, policies: Mapping[str, CommandPolicy]) -> Recipe:
    try:
        return recipe_of(entry.document, defaults, policies)
    except InvalidRequest as error:
        raise InvalidRequest(f"{entry.file}: {error.message}", details={"file": str(entry.file)}) from error


def _catalogue(recipes: Mapping[str, Recipe], kinds: Mapping[str, _Kind]) -> Catalogue:
    def entries(kind: str) -> tuple[RegistryEntry, ...]:
        return tuple(
            RegistryEntry(
                kind=kind.removesuffix("s"),
                name=name,
                description=entry.document["description"],
                spec={k: v for k, v in entry.document.items() if k not in ("name", "description")},
            )
            for name, entry in sorted(kinds[kind].entries.items())
        )

    return Catalogue(
        environments=tuple(EnvironmentInfo.of(recipe) for recipe in recipes.values()),
        tools=entries("tools"),
        prompts=entries("prompts"),
        agents=entries("agents"),
    )
