"""Settings for object storage: where snapshots and artifacts are saved, and with which keys."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from sandlot.config.workspaces.volume_settings import VolumeSettings
from sandlot.config.workspaces.workspace_settings import TEN_YEARS_S, Duration
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.workspaces.objects.locations import Location, parse_location


class ObjectSettings(VolumeSettings):
    objects_url: str | None = Field(
        None,
        description=(
            "Where to save snapshots and artifacts beside this machine: `s3://BUCKET/PREFIX` or "
            "`file:///FOLDER`, such as a mounted network disk. Give all workers of a fleet the same, so that "
            "each can load what another has saved. None: they are on this machine alone. Needs `pip install "
            "'.[objects]'` in your clone."
        ),
    )
    objects_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$",
        description=(
            "URL of the S3 server, such as `https://minio.example.com:9000`. None: that of AWS for the "
            "region."
        ),
    )
    objects_region: str | None = Field(
        None, pattern=r"^[a-z0-9-]{1,64}$", description="Region of the bucket, such as `eu-central-1`."
    )
    objects_credentials_file: Path | None = Field(
        None,
        description=(
            "File with the access key id on the first line and the secret access key on the second. None: "
            "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine."
        ),
    )
    objects_key_file: Path | None = Field(
        None,
        description=(
            "File with the key that encrypts what is saved, as 64 hexadecimal digits. To create one: "
            "`openssl rand -hex 32`. All workers of a fleet need the same. Keep a copy: without it, nobody "
            "can read what is saved. None: it is checksummed, and not encrypted."
        ),
    )
    snapshot_every: Duration | None = Field(
        None,
        ge=1,
        le=TEN_YEARS_S,
        description=(
            "How often a snapshot of each running session is taken and saved in object storage, in seconds "
            "or with a unit, such as `5m`. A session without changes is left out, and of each session only "
            "the newest of these stays. So if the machine is lost for good, a session loses at most this "
            "much and the time that saving takes. None: only snapshots with a name and those of hibernated "
            "sessions are saved."
        ),
    )

    @field_validator("objects_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parse_location(url)
            except InvalidRequest as error:
                raise ValueError(error.message) from None
        return url

    @field_validator("objects_credentials_file", "objects_key_file")
    @classmethod
    def _expand_path(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _check_objects(self) -> ObjectSettings:
        if self.objects_url is None:
            for name in (
                "objects_endpoint",
                "objects_region",
                "objects_credentials_file",
                "objects_key_file",
                "snapshot_every",
            ):
                if getattr(self, name) is not None:
                    raise ValueError(f"SANDLOT_{name.upper()} has no effect without SANDLOT_OBJECTS_URL.")
        return self

    @property
    def objects_location(self) -> Location | None:
        return None if self.objects_url is None else parse_location(self.objects_url)
