"""Names and limits that the server has too, from crates/names; made by a test of crates/model. Stale: UPDATE=1 cargo test --workspace."""

#: Messages and metadata of one conversation, as JSON.
CONVERSATION_BYTES = 33554432

#: One image or other file.
MEDIA_BYTES = 33554432

#: One OTLP message after decompression, by default.
MESSAGE_BYTES = 67108864

#: A run's id.
RUN_ID_BYTES = 256

#: The highest trace level; 0 is off.
TRACE_LEVEL = 3

# Attributes of spans and resources.
RUN_ID = "rl.run.id"
RUN_NAME = "rl.run.name"
PROJECT = "rl.project"
SYSTEM = "rl.system"
STEP = "rl.step"
SAMPLE_ID = "rl.sample.id"
GROUP_ID = "rl.group.id"
ATTEMPT = "rl.attempt"
PHASE = "rl.phase"
STATE = "rollscope.state"
START_ATTRS = "rollscope.start_attrs"
ORIGINAL_TRACE_ID = "rollscope.original_trace_id"
ORIGINAL_SPAN_ID = "rollscope.original_span_id"
ORIGINAL_PARENT_SPAN_ID = "rollscope.original_parent_span_id"

# Log records: their event names, and the attributes that have no OTLP name.
EVENT_RUN = "rollscope.run"
EVENT_METRICS = "rollscope.metrics"
EVENT_CONVERSATION = "rollscope.conversation"
EVENT_MEDIA = "rollscope.media"
EVENT_STATS = "rollscope.stats"
CONFIG = "rollscope.config"
TAGS = "rollscope.tags"
STARTED_NS = "rollscope.started_ns"
ENDED_NS = "rollscope.ended_ns"
STATUS = "rollscope.status"
ID = "rollscope.id"
KEY = "rollscope.key"
INDEX = "rollscope.index"
METADATA = "rollscope.metadata"

#: Kinds of work, for `phase`.
PHASES = (
    "tool",
    "reward",
    "decode",
    "prefill",
    "queue",
    "transfer",
    "tokenize",
    "generate",
    "log_probs",
    "train",
    "weight_sync",
    "checkpoint",
    "validation",
    "data",
    "rollout",
    "step",
    "idle",
)

#: By their numbers in OTLP.
SPAN_KINDS = (
    "unspecified",
    "internal",
    "server",
    "client",
    "producer",
    "consumer",
)
STATUSES = (
    "unset",
    "ok",
    "error",
)

#: Prefill and decode of a request: the attribute with the seconds, and the span that stands for it.
PD_PREFILL = (
    ("pd_prefill_bootstrap_queue_duration", "sglang_pd_prefill_bootstrap_queue"),
    ("pd_prefill_bootstrap_duration", "sglang_pd_prefill_bootstrap"),
    ("pd_prefill_alloc_wait_duration", "sglang_pd_prefill_alloc_wait"),
    ("pd_prefill_forward_duration", "sglang_pd_prefill_forward"),
    ("pd_prefill_transfer_queue_duration", "sglang_pd_prefill_transfer_queue"),
)
PD_DECODE = (
    ("pd_decode_prealloc_duration", "sglang_pd_decode_prealloc"),
    ("pd_decode_bootstrap_duration", "sglang_pd_decode_bootstrap"),
    ("pd_decode_alloc_wait_duration", "sglang_pd_decode_alloc_wait"),
    ("pd_decode_transfer_duration", "sglang_pd_decode_transfer"),
    ("pd_decode_forward_duration", "sglang_pd_decode_forward"),
)
PD_SUMMARY = (
    "pd_transfer_speed_gb_s",
    "pd_transfer_total_mb",
    "pd_prefill_retry_count",
)
