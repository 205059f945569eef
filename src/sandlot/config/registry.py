"""The registry: environments, tools, prompts and agents declared in YAML, read into domain values.

    registry/environments/*.yaml   how a sandbox is made; these become recipes
    registry/tools/*.yaml          what an agent can be offered, with a JSON schema of its parameters
    registry/prompts/*.yaml        text that tells a model how to work in a sandbox
    registry/agents/*.yaml         which environment, tools and prompt go together
    registry/schema/*.json         what each of these files may contain

The shipped registry is read first. The operator's own folder adds entries and replaces those of the
same name. The registry contains no logic, and every error names the file and the place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match

from sandlot.config.packaged import packaged_folder
from sandlot.config.recipes import RecipeDefaults, recipe_of
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Catalogue, EnvironmentInfo, RegistryEntry

KINDS = ("environments", "tools", "prompts", "agents")
MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 1000  # per folder


@dataclass(frozen=True, slots=True)
class Registry:
    recipes: Mapping[str, Recipe]
    catalogue: Catalogue


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    document: Mapping[str, Any]


@dataclass(slots=True)
class _Kind:
    validator: Draft202012Validator
    entries: dict[str, _Entry] = field(default_factory=dict)


def load_registry(extra: Path | None = None, *, defaults: RecipeDefaults) -> Registry:
    shipped = packaged_folder("registry")
    kinds = {kind: _Kind(_validator(shipped / "schema" / f"{kind}.json")) for kind in KINDS}
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
    recipes = {
        name: _recipe(entry, defaults) for name, entry in sorted(kinds["environments"].entries.items())
    }
    return Registry(recipes, _catalogue(recipes, kinds))


def _folders() -> str:
    return ", ".join(f"{kind}/" for kind in KINDS)


def _validator(schema: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema.read_text("utf-8")))


# --- files --------------------------------------------------------------------------------------


def _read_folder(folder: Path, kinds: Mapping[str, _Kind]) -> None:
    for folder_name, kind in kinds.items():
        found: dict[str, _Entry] = {}
        for file in _yaml_files(folder / folder_name):
            document = _validate(file, _read_yaml(file), kind.validator)
            name = document["name"]
            if name in found:
                raise _problem(
                    file, "name", f"{name} is also declared in {found[name].file.name}. Rename one of them."
                )
            found[name] = _Entry(file, document)
        kind.entries.update(found)


def _yaml_files(folder: Path) -> Iterator[Path]:
    files = sorted(path for path in folder.glob("*") if path.suffix in (".yaml", ".yml"))
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"{folder} has more than {MAX_FILES} files.")
    yield from files


class _PlainLoader(yaml.SafeLoader):
    """Loads plain data: no aliases (a few can make gigabytes), no duplicate or non-text keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None, None, "YAML aliases are not allowed.", self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in keys:
                fault = "is repeated." if isinstance(key, str) else "is not text. Put it in quotes."
                raise yaml.constructor.ConstructorError(None, None, f"key {key} {fault}", key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


def _read_yaml(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"Cannot read {file}: {error.strerror}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{file} exceeds {MAX_FILE_BYTES} bytes.")
    try:
        document = yaml.load(content, _PlainLoader)  # noqa: S506 (stricter than SafeLoader)
        json.dumps(document, allow_nan=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise _problem(file, place, error.problem or "not valid YAML") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{file}: nested too deeply.") from error
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{file}: has a value that JSON cannot represent: {error}") from error
    return document


def _validate(file: Path, document: Any, validator: Draft202012Validator) -> Mapping[str, Any]:
    error = best_match(validator.iter_errors(document))
    if error is not None:
        raise _problem(file, _place(error), error.message[:300])
    assert isinstance(document, dict)  # the schema requires it
    if "parameters" in document:
        try:
            Draft202012Validator.check_schema(document["parameters"])
        except SchemaError as wrong:
            where = ".".join(["parameters", *map(str, wrong.path)])
            raise _problem(file, where, f"not a valid JSON schema: {wrong.message[:300]}") from wrong
    return document


def _place(error: ValidationError) -> str:
    return ".".join(map(str, error.absolute_path)) or "the whole file"


def _problem(file: Path, place: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{file}: {place}: {message}", details={"file": str(file), "place": place})


# --- conversion to the domain ---------------------------------------------------------------------


def _check_references(kinds: Mapping[str, _Kind]) -> None:
    """Check that the environment, tools and prompt that each agent names exist."""
    for entry in kinds["agents"].entries.values():
        document = entry.document
        references = [("environment", "environments", document.get("environment"))]
        references += [("prompt", "prompts", document.get("prompt"))]
        references += [(f"tools.{i}", "tools", name) for i, name in enumerate(document.get("tools", ()))]
        for place, kind, name in references:
            if name is not None and name not in kinds[kind].entries:
                known = ", ".join(sorted(kinds[kind].entries))
                raise _problem(
                    entry.file, place, f"{name} is not in the registry's {kind}. Available: {known}."
                )


def _recipe(entry: _Entry, defaults: RecipeDefaults) -> Recipe:
    try:
        return recipe_of(entry.document, defaults)
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
