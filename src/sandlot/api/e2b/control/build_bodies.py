"""The bodies of E2B's REST API about builds of templates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sandlot.api.e2b.bodies import Body
from sandlot.domain.templates.build import MAX_ARGUMENT, MAX_STEPS

Text = Annotated[str, msgspec.Meta(max_length=300)]


class RequestBuild(Body, frozen=True):
    """``alias`` comes from older SDKs, in the place of ``name``."""

    name: Text | None = None
    alias: Text | None = None
    tags: Annotated[list[Text], msgspec.Meta(max_length=20)] | None = None
    cpu_count: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    memory_mb: Annotated[int, msgspec.Meta(ge=16, le=1024 * 1024)] | None = msgspec.field(
        default=None, name="memoryMB"
    )
    min_free_disk_mb: Annotated[int, msgspec.Meta(ge=0)] | None = msgspec.field(
        default=None, name="minFreeDiskMb"
    )


class BuildStep(Body, frozen=True):
    type: Literal["COPY", "ENV", "RUN", "WORKDIR", "USER"]
    args: (
        Annotated[list[Annotated[str, msgspec.Meta(max_length=MAX_ARGUMENT)]], msgspec.Meta(max_length=1000)]
        | None
    ) = None
    files_hash: Text | None = None
    force: bool = False
    force_upload: bool | None = None


class StartBuild(Body, frozen=True):
    from_image: Text | None = None
    from_template: Text | None = None
    from_image_registry: Any = None
    force: bool = False
    steps: Annotated[list[BuildStep], msgspec.Meta(max_length=MAX_STEPS)] | None = None
    start_cmd: Annotated[str, msgspec.Meta(max_length=MAX_ARGUMENT)] | None = None
    ready_cmd: Annotated[str, msgspec.Meta(max_length=MAX_ARGUMENT)] | None = None


class BuildBody(msgspec.Struct, frozen=True):
    template_id: str = msgspec.field(name="templateID")
    build_id: str = msgspec.field(name="buildID")
    public: bool
    names: list[str]
    tags: list[str]
    aliases: list[str]


class UploadBody(msgspec.Struct, frozen=True):
    present: bool
    url: str


class BuildLine(msgspec.Struct, frozen=True):
    timestamp: str
    level: str
    message: str


class BuildReason(msgspec.Struct, omit_defaults=True, frozen=True):
    message: str
    step: str | None = None


class BuildStatusBody(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    template_id: str = msgspec.field(name="templateID")
    build_id: str = msgspec.field(name="buildID")
    status: str
    logs: list[str]
    log_entries: list[BuildLine]
    reason: BuildReason | None = None
