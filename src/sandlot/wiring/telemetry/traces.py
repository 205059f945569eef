"""Sends a server's spans to a collector, or prints them."""

from __future__ import annotations

import sys
from typing import Any

from sandlot import __version__
from sandlot.client.extras import import_extra
from sandlot.config.settings import ServerSettings

SERVICE = "sandlot"


def configure_traces(settings: ServerSettings, role: str) -> None:
    """Once for each process. OpenTelemetry's own variables say where to, how often, and which share.

    ``role``: what kind of member the process is. What is not sent when the process ends is sent then.
    """
    if settings.traces == "off":
        return
    sdk = import_extra("opentelemetry.sdk.trace", extra="otel", needed_by="SANDLOT_TRACES")
    export = import_extra("opentelemetry.sdk.trace.export", extra="otel", needed_by="SANDLOT_TRACES")
    resources = import_extra("opentelemetry.sdk.resources", extra="otel", needed_by="SANDLOT_TRACES")
    trace = import_extra("opentelemetry.trace", extra="otel", needed_by="SANDLOT_TRACES")
    resource = resources.Resource.create(
        {"service.name": f"{SERVICE}-{role}", "service.version": __version__}
    )
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(_processor(settings.traces, export))
    trace.set_tracer_provider(provider)


def _processor(kind: str, export: Any) -> Any:
    if kind == "console":
        printed = export.ConsoleSpanExporter(
            out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n"
        )
        return export.SimpleSpanProcessor(printed)
    otlp = import_extra(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", extra="otel", needed_by="SANDLOT_TRACES"
    )
    return export.BatchSpanProcessor(otlp.OTLPSpanExporter())
