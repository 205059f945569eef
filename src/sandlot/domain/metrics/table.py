"""All metrics. ``docs/reference/metrics.md`` is written from this table.

No label has the name of a tenant, a session, a key or a host, of which there can be any number.
"""

from __future__ import annotations

from typing import Final

from sandlot.domain.errors import FILE_REASONS
from sandlot.domain.execution import Verdict
from sandlot.domain.metrics.metric import Kind, Label, Member, Metric
from sandlot.domain.session import EndReason

# Commands and creates that wait for an image take longer than any answer of the API.
_LONG: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

ENVIRONMENT: Final = Label("environment")

# --- the API --------------------------------------------------------------------------------------

REQUESTS: Final = Metric(
    "sandlot_http_requests_total",
    Kind.COUNTER,
    "Requests by method, route and status. Status 0: the client left before the response.",
    (Label("method"), Label("route"), Label("status")),
    Member.ALL,
)
REQUEST_SECONDS: Final = Metric(
    "sandlot_http_request_seconds",
    Kind.HISTOGRAM,
    "Seconds until the response started.",
    (Label("method"), Label("route")),
    Member.ALL,
)
ERRORS: Final = Metric(
    "sandlot_errors_total",
    Kind.COUNTER,
    "Calls that were refused or failed, by the error's code and its `details.reason`.",
    (Label("code"), Label("reason")),
    Member.ALL,
)
READY: Final = Metric(
    "sandlot_ready", Kind.GAUGE, "Whether existing sessions can be used.", members=Member.ALL
)
CREATES: Final = Metric(
    "sandlot_creates", Kind.GAUGE, "Whether new sessions are accepted.", members=Member.ALL
)
PROBLEMS: Final = Metric(
    "sandlot_problems",
    Kind.GAUGE,
    "How many problems `GET /v1/health` lists for the operator.",
    members=Member.ALL,
)
ACTIVE_SESSIONS: Final = Metric(
    "sandlot_active_sessions",
    Kind.GAUGE,
    "Active, lost and hibernated sessions. At a coordinator, those of the fleet.",
    members=Member.ALL,
)
CALLS_UNDER_WAY: Final = Metric(
    "sandlot_calls_under_way", Kind.GAUGE, "Sandbox calls in progress.", members=Member.ALL
)
INFO: Final = Metric(
    "sandlot_info",
    Kind.GAUGE,
    "Always 1. Its labels are the process's id and version.",
    (Label("worker_id"), Label("version")),
    Member.ALL,
)

# --- sessions and commands ------------------------------------------------------------------------

SESSIONS_OPENED: Final = Metric(
    "sandlot_sessions_opened_total",
    Kind.COUNTER,
    "Sandboxes that sessions got. `created`: for a new session. `taken_over`: from a worker that is gone. "
    "`recreated`: after a loss. `woken`: after hibernation. `restored`: for a snapshot.",
    (ENVIRONMENT, Label("way")),
)
SESSION_OPEN_SECONDS: Final = Metric(
    "sandlot_session_open_seconds",
    Kind.HISTOGRAM,
    "Seconds until a session had its sandbox, with the time in the queue.",
    (ENVIRONMENT, Label("way")),
    buckets=_LONG,
)
SESSIONS_ENDED: Final = Metric(
    "sandlot_sessions_ended_total",
    Kind.COUNTER,
    "Sessions that ended, by reason.",
    (Label("reason", tuple(reason.value for reason in EndReason)),),
)
SANDBOXES_LOST: Final = Metric(
    "sandlot_sandboxes_lost_total",
    Kind.COUNTER,
    "Sandboxes of sessions that were lost, by cause. `ended`, `gone`: its container did or is. "
    "`quarantined`: it broke the protocol. `unresponsive`: it was given up. `other`: it could not be "
    "prepared.",
    (Label("cause", ("ended", "gone", "quarantined", "unresponsive", "other")),),
)
UNRESPONSIVE: Final = Metric(
    "sandlot_unresponsive_sandboxes", Kind.GAUGE, "Sandboxes of sessions that do not answer now."
)
EXECS: Final = Metric(
    "sandlot_execs_total",
    Kind.COUNTER,
    "Commands that ended, by verdict. `unseen`: the end was not seen, because the sandbox is gone.",
    (ENVIRONMENT, Label("verdict", (*(verdict.value for verdict in Verdict), "unseen"))),
)
EXEC_SECONDS: Final = Metric(
    "sandlot_exec_seconds",
    Kind.HISTOGRAM,
    "Seconds that commands ran.",
    (ENVIRONMENT,),
    buckets=_LONG,
)
EXECS_RUNNING: Final = Metric(
    "sandlot_execs_running", Kind.GAUGE, "Commands that run now, without those that began before a restart."
)

# --- sandboxes ------------------------------------------------------------------------------------

POOL_SANDBOXES: Final = Metric(
    "sandlot_pool_sandboxes",
    Kind.GAUGE,
    "Warm sandboxes by state. At a coordinator, those of the fleet.",
    (ENVIRONMENT, Label("state", ("ready", "making"))),
    Member.ALL,
)
POOL_TARGET: Final = Metric(
    "sandlot_pool_target",
    Kind.GAUGE,
    "Target number of warm sandboxes.",
    (ENVIRONMENT,),
    Member.ALL,
)
POOL_WAITING: Final = Metric(
    "sandlot_pool_waiting",
    Kind.GAUGE,
    "Creates in the queue for a sandbox.",
    (ENVIRONMENT,),
    Member.ALL,
)
POOL_HITS: Final = Metric(
    "sandlot_pool_hits_total",
    Kind.COUNTER,
    "Creates served by a warm sandbox.",
    (ENVIRONMENT,),
    Member.ALL,
)
POOL_MISSES: Final = Metric(
    "sandlot_pool_misses_total",
    Kind.COUNTER,
    "Creates not served by a warm sandbox, by reason.",
    (ENVIRONMENT, Label("reason")),
    Member.ALL,
)
POOL_FAILURES: Final = Metric(
    "sandlot_pool_failures_in_a_row",
    Kind.GAUGE,
    "How often making a warm sandbox has failed since it last succeeded.",
    (ENVIRONMENT,),
    Member.ALL,
)
POOL_CLAIM_SECONDS: Final = Metric(
    "sandlot_pool_claim_seconds",
    Kind.HISTOGRAM,
    "Seconds from a create's claim to its sandbox, or to its refusal.",
    (ENVIRONMENT,),
)
SANDBOXES_MADE: Final = Metric(
    "sandlot_sandboxes_made_total",
    Kind.COUNTER,
    "Warm sandboxes by how making them ended.",
    (ENVIRONMENT, Label("outcome", ("made", "failed"))),
)
SANDBOX_MAKE_SECONDS: Final = Metric(
    "sandlot_sandbox_make_seconds",
    Kind.HISTOGRAM,
    "Seconds to make a warm sandbox.",
    (ENVIRONMENT,),
)
LINK_REDIALS: Final = Metric(
    "sandlot_link_redials_total",
    Kind.COUNTER,
    "Links that agents opened again after a break, and after a restart of the worker.",
)

# --- the network of sandboxes ---------------------------------------------------------------------

EGRESS_BYTES: Final = Metric(
    "sandlot_egress_bytes_total",
    Kind.COUNTER,
    "Bytes between sandboxes and hosts outside.",
    (Label("direction", ("sent", "received")),),
)
EGRESS_REQUESTS: Final = Metric(
    "sandlot_egress_requests_total",
    Kind.COUNTER,
    "Requests and tunnels of sandboxes: those that reached a host, and those that a policy denied.",
    (Label("outcome", ("reached", "denied")),),
)
EGRESS_REFUSED: Final = Metric(
    "sandlot_egress_refused_connections_total",
    Kind.COUNTER,
    "Connections that were too many for their session.",
)
EGRESS_OPEN: Final = Metric("sandlot_egress_open_connections", Kind.GAUGE, "Connections open now.")

# --- the machine and its disks --------------------------------------------------------------------

DISK_FREE: Final = Metric(
    "sandlot_disk_free_bytes",
    Kind.GAUGE,
    "Free space on the disk of the data folder, of the engine and of the workspace storage.",
    (Label("disk"),),
)
DISK_SIZE: Final = Metric("sandlot_disk_size_bytes", Kind.GAUGE, "Sizes of these disks.", (Label("disk"),))
MEMORY: Final = Metric(
    "sandlot_machine_memory_bytes",
    Kind.GAUGE,
    "Memory that sandboxes may be given in all (`total`), and have been given (`given`).",
    (Label("amount"),),
)
CPUS: Final = Metric("sandlot_machine_cpus", Kind.GAUGE, "The same for processors.", (Label("amount"),))
HISTORY_EVENTS: Final = Metric(
    "sandlot_history_events_total", Kind.COUNTER, "Events recorded in the history."
)
HISTORY_DROPPED: Final = Metric(
    "sandlot_history_dropped_events_total",
    Kind.COUNTER,
    "Events not recorded, because the disk could not keep up.",
)
HISTORY_LAG: Final = Metric(
    "sandlot_history_lag_seconds", Kind.GAUGE, "Age of the oldest event that is not on disk yet."
)
HISTORY_BYTES: Final = Metric("sandlot_history_bytes", Kind.GAUGE, "Size of the history on disk.")
RECORDED_SESSIONS: Final = Metric("sandlot_recorded_sessions", Kind.GAUGE, "Sessions that have a recording.")
RECORDINGS_BYTES: Final = Metric("sandlot_recordings_bytes", Kind.GAUGE, "Size of all recordings on disk.")

# --- a fleet --------------------------------------------------------------------------------------

DIRECTORY_CALLS: Final = Metric(
    "sandlot_directory_calls_total",
    Kind.COUNTER,
    "Calls of the fleet's directory in Redis.",
    (Label("call"), Label("outcome")),
    Member.FLEET,
)
DIRECTORY_SECONDS: Final = Metric(
    "sandlot_directory_call_seconds",
    Kind.HISTOGRAM,
    "Seconds that these calls took.",
    (Label("call"),),
    Member.FLEET,
)
WORKERS: Final = Metric(
    "sandlot_workers",
    Kind.GAUGE,
    "Workers of the fleet by state.",
    (Label("state"),),
    Member.COORDINATOR,
)

METRICS: Final = tuple(value for value in globals().values() if isinstance(value, Metric))
# Those of every server, whatever stands behind it.
API_METRICS: Final = tuple(each for each in METRICS if each.members is Member.ALL)
SERVER_METRICS: Final = tuple(each for each in METRICS if each.members in (Member.ALL, Member.WORKER))
MEMBER_METRICS: Final = tuple(each for each in METRICS if each.members is not Member.COORDINATOR)
COORDINATOR_METRICS: Final = tuple(each for each in METRICS if each.members is not Member.WORKER)

# What ``details.reason`` can say in an error. Others count as ``other``: an answer that a coordinator passes
# on comes from another process.
REASONS: Final = frozenset(
    (
        *FILE_REASONS,
        *(reason.value for reason in EndReason),
        *("capacity", "changes", "draining", "environment_broken", "environment_changed", "exposed_ports"),
        *("fenced", "in_doubt", "keys", "large_results", "not_here", "not_recorded", "opening", "policies"),
        *("port_connections", "queue", "quota", "rate", "sandboxes_die", "step_overtaken", "stopping"),
        *("storage_full", "streams", "unsettled", "volume_busy", "volume_gone", "watchers", "worker_gone"),
        *("worker_late", "worker_unreachable", "workers_missing", "directory_timeout"),
        *("directory_connection", "directory_credentials", "directory_permissions"),
    )
)
